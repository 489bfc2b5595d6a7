"""The ready-made networks in PyTorch: scores of a batch, from parameters by name."""

import pytest

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def conv(w, name, image, **options):
    bias = w.get(f"{name}.bias")
    return functional.conv2d(image, w[f"{name}.weight"].permute(3, 2, 0, 1), bias, **options)


def dense(w, name, x):
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def lenet(w, x):
    x = x.permute(0, 3, 1, 2)
    for name in ("conv1", "conv2"):
        x = functional.max_pool2d(conv(w, name, x).relu(), 2)
    x = x.permute(0, 2, 3, 1).flatten(1)
    return dense(w, "output", dense(w, "dense2", dense(w, "dense1", x).relu()).relu())


def mcmahan_cnn(w, x):
    x = x.permute(0, 3, 1, 2)
    for name in ("conv1", "conv2"):
        x = functional.max_pool2d(conv(w, name, x, padding=2).relu(), 2)
    return dense(w, "output", dense(w, "dense", x.permute(0, 2, 3, 1).flatten(1)).relu())


def resnet(blocks):
    def scores(w, x):
        def layer(name, image, stride=1):
            out = conv(w, name, image, stride=stride, padding=1)
            return functional.group_norm(out, 8, w[f"{name}.scale"], w[f"{name}.shift"])

        x = layer("first", x.permute(0, 3, 1, 2)).relu()
        for stage in (1, 2, 3):
            for block in range(1, blocks + 1):
                name, stride = f"stage{stage}_block{block}", 2 if stage > 1 and block == 1 else 1
                inner = layer(f"{name}.second", layer(f"{name}.first", x, stride).relu())
                kept = x[:, :, ::stride, ::stride]
                kept = functional.pad(kept, (0, 0, 0, 0, 0, inner.shape[1] - kept.shape[1]))
                x = (kept + inner).relu()
        return dense(w, "output", x.mean((2, 3)))

    return scores


def char_transformer(w, x):
    """PyTorch's own layers, with the weights written into a copy of their parameters."""
    h = w["characters"][x] + w["positions"]
    for index in (1, 2):
        name = f"layer{index}"
        layer = torch.nn.TransformerEncoderLayer(
            128,
            4,
            512,
            0.0,
            lambda z: functional.gelu(z, approximate="tanh"),
            batch_first=True,
            norm_first=True,
        )
        joined = {
            "self_attn.in_proj_weight": torch.cat([w[f"{name}.{p}.weight"].T for p in ("query", "key", "value")]),
            "self_attn.in_proj_bias": torch.cat([w[f"{name}.{p}.bias"] for p in ("query", "key", "value")]),
            "self_attn.out_proj.weight": w[f"{name}.mixed.weight"].T,
            "self_attn.out_proj.bias": w[f"{name}.mixed.bias"],
            "linear1.weight": w[f"{name}.dense1.weight"].T,
            "linear1.bias": w[f"{name}.dense1.bias"],
            "linear2.weight": w[f"{name}.dense2.weight"].T,
            "linear2.bias": w[f"{name}.dense2.bias"],
            **{
                f"norm{n}.{theirs}": w[f"{name}.norm{n}.{ours}"]
                for n in (1, 2)
                for theirs, ours in (("weight", "scale"), ("bias", "shift"))
            },
        }
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = torch.func.functional_call(layer, joined, (h,), {"src_mask": mask, "is_causal": True})
    last = functional.layer_norm(h[:, -1], (128,), w["norm.scale"], w["norm.shift"])
    return dense(w, "output", last)


SCORES = {
    "lenet": lenet,
    "mcmahan_cnn": mcmahan_cnn,
    "resnet8": resnet(1),
    "resnet20": resnet(3),
    "char_transformer": char_transformer,
}
