/* The machine's limit in plain C loops: mini-batch SGD on the proximal subproblem of softmax regression, and one pass
   over the data for loss, hits and the gradient of every device. */
#include <math.h>
#include <string.h>

/* x: rows x features, y: labels, order: rows of all batches one after another, sizes: of each batch,
   weight: classes x features, gradient: scratch of classes x features + classes. With -DWIDTH=n the compiler knows the
   number of features, which is then not taken from the argument. */
void solve(const float *x, const int *y, const int *order, const int *sizes, int steps, int width, int classes,
           float learning_rate, float mu, const float *anchor_weight, const float *anchor_bias,
           float *weight, float *bias, float *gradient)
{
#ifdef WIDTH
    const int features = WIDTH;
#else
    const int features = width;
#endif
    float score[256];
    float *bias_gradient = gradient + classes * features;
    for (int s = 0; s < steps; s++) {
        const int size = sizes[s];
        memset(gradient, 0, sizeof(float) * (classes * features + classes));
        for (int i = 0; i < size; i++) {
            const float *example = x + (long)order[i] * features;
            const int label = y[order[i]];
            float largest = -INFINITY, total = 0;
            for (int c = 0; c < classes; c++) {
                float sum = bias[c];
                for (int j = 0; j < features; j++) sum += weight[c * features + j] * example[j];
                score[c] = sum;
                if (sum > largest) largest = sum;
            }
            for (int c = 0; c < classes; c++) total += score[c] = expf(score[c] - largest);
            for (int c = 0; c < classes; c++) {
                const float residual = (score[c] / total - (c == label)) / size;
                for (int j = 0; j < features; j++) gradient[c * features + j] += residual * example[j];
                bias_gradient[c] += residual;
            }
        }
        for (int j = 0; j < classes * features; j++)
            weight[j] -= learning_rate * (gradient[j] + mu * (weight[j] - anchor_weight[j]));
        for (int c = 0; c < classes; c++)
            bias[c] -= learning_rate * (bias_gradient[c] + mu * (bias[c] - anchor_bias[c]));
        order += size;
    }
}

/* A round of small devices, one after another: each takes `steps` steps of `batch` rows from the anchor, `order` has the
   rows of all of them, and merged_weight and merged_bias become the sum of share times result. scratch: twice
   classes x features + classes. */
void solve_round(const float *x, const int *y, const int *order, const float *share, int devices, int steps, int batch,
                 int features, int classes, float learning_rate, float mu, const float *anchor_weight,
                 const float *anchor_bias, float *merged_weight, float *merged_bias, float *scratch)
{
    const int size = classes * features;
    float *weight = scratch, *bias = scratch + size, *gradient = bias + classes;
    int sizes[steps];
    for (int s = 0; s < steps; s++) sizes[s] = batch;
    for (int k = 0; k < devices; k++) {
        memcpy(weight, anchor_weight, sizeof(float) * size);
        memcpy(bias, anchor_bias, sizeof(float) * classes);
        solve(x, y, order + (long)k * steps * batch, sizes, steps, features, classes, learning_rate, mu, anchor_weight,
              anchor_bias, weight, bias, gradient);
        for (int j = 0; j < size; j++) merged_weight[j] += share[k] * weight[j];
        for (int c = 0; c < classes; c++) merged_bias[c] += share[k] * bias[c];
    }
}

/* Devices 0, ..., devices - 1 own the rows offsets[k], ..., offsets[k + 1] - 1 of x. Adds the gradients of all rows up in
   total (classes x features + classes), with scratch of the same size; sums[0..1]: loss and hits; norms2: of every
   device's mean gradient. */
void measure(const float *x, const int *y, const long *offsets, int devices, int features, int classes,
             const float *weight, const float *bias, float *total, float *gradient, double *sums, float *norms2)
{
    const int size = classes * features + classes;
    float score[256];
    for (int k = 0; k < devices; k++) {
        memset(gradient, 0, sizeof(float) * size);
        for (long i = offsets[k]; i < offsets[k + 1]; i++) {
            const float *example = x + i * features;
            float largest = -INFINITY, sum_of_powers = 0;
            int best = 0;
            for (int c = 0; c < classes; c++) {
                float sum = bias[c];
                for (int j = 0; j < features; j++) sum += weight[c * features + j] * example[j];
                score[c] = sum;
                if (sum > largest) largest = sum, best = c;
            }
            sums[0] -= score[y[i]] - largest;
            sums[1] += best == y[i];
            for (int c = 0; c < classes; c++) sum_of_powers += score[c] = expf(score[c] - largest);
            sums[0] += logf(sum_of_powers);
            for (int c = 0; c < classes; c++) {
                const float residual = score[c] / sum_of_powers - (c == y[i]);
                for (int j = 0; j < features; j++) gradient[c * features + j] += residual * example[j];
                gradient[classes * features + c] += residual;
            }
        }
        const float count = offsets[k + 1] - offsets[k];
        float norm2 = 0;
        for (int j = 0; j < size; j++) norm2 += gradient[j] * gradient[j], total[j] += gradient[j];
        norms2[k] = norm2 / (count * count);
    }
}

/* The same pass, written for ten classes by hand: ten sums in registers, eight rows in the first cache. */
typedef float vector __attribute__((vector_size(32), aligned(4)));
enum { TEN = 10, ROWS = 8, LANES = 8 };

static void scores_of(const float *example, const float *weight, const float *bias, int features, float *score)
{
    vector sums[TEN] = {0};
    const int whole = features / LANES * LANES;
    for (int j = 0; j < whole; j += LANES) {
        const vector some = *(const vector *)(example + j);
        for (int c = 0; c < TEN; c++) sums[c] += some * *(const vector *)(weight + c * features + j);
    }
    for (int c = 0; c < TEN; c++) {
        score[c] = bias[c];
        for (int l = 0; l < LANES; l++) score[c] += sums[c][l];
        for (int j = whole; j < features; j++) score[c] += example[j] * weight[c * features + j];
    }
}

static void add_outer(const float *rows, const float *residual, int count, int features, float *gradient)
{
    const int whole = features / LANES * LANES;
    for (int j = 0; j < whole; j += LANES) {
        vector sums[TEN];
        for (int c = 0; c < TEN; c++) sums[c] = *(const vector *)(gradient + c * features + j);
        for (int i = 0; i < count; i++) {
            const vector some = *(const vector *)(rows + (long)i * features + j);
            for (int c = 0; c < TEN; c++) sums[c] += some * residual[i * TEN + c];
        }
        for (int c = 0; c < TEN; c++) *(vector *)(gradient + c * features + j) = sums[c];
    }
    for (int i = 0; i < count; i++)
        for (int c = 0; c < TEN; c++)
            for (int j = whole; j < features; j++)
                gradient[c * features + j] += residual[i * TEN + c] * rows[(long)i * features + j];
}

void measure_by_hand(const float *x, const int *y, const long *offsets, int devices, int features, int classes,
                     const float *weight, const float *bias, float *total, float *gradient, double *sums,
                     float *norms2)
{
    const int size = TEN * features + TEN;
    float residual[ROWS * TEN];
    for (int k = 0; k < devices; k++) {
        memset(gradient, 0, sizeof(float) * size);
        for (long first = offsets[k]; first < offsets[k + 1]; first += ROWS) {
            const int count = offsets[k + 1] - first < ROWS ? offsets[k + 1] - first : ROWS;
            for (int i = 0; i < count; i++) {
                float *score = residual + i * TEN, largest = -INFINITY, sum_of_powers = 0;
                const int label = y[first + i];
                int best = 0;
                scores_of(x + (first + i) * features, weight, bias, features, score);
                for (int c = 0; c < TEN; c++)
                    if (score[c] > largest) largest = score[c], best = c;
                sums[0] -= score[label] - largest;
                sums[1] += best == label;
                for (int c = 0; c < TEN; c++) sum_of_powers += score[c] = expf(score[c] - largest);
                sums[0] += logf(sum_of_powers);
                for (int c = 0; c < TEN; c++) {
                    score[c] = score[c] / sum_of_powers - (c == label);
                    gradient[TEN * features + c] += score[c];
                }
            }
            add_outer(x + first * features, residual, count, features, gradient);
        }
        const float count = offsets[k + 1] - offsets[k];
        float norm2 = 0;
        for (int j = 0; j < size; j++) norm2 += gradient[j] * gradient[j], total[j] += gradient[j];
        norms2[k] = norm2 / (count * count);
    }
}

/* The most that a core computes: `times` times ten multiply-adds of vectors that stay in registers. */
float multiply_adds(long times, float factor, float term)
{
    vector sums[TEN];
    for (int c = 0; c < TEN; c++) sums[c] = (float)c + (vector){0};
    for (long n = 0; n < times; n++)
        for (int c = 0; c < TEN; c++) sums[c] = sums[c] * factor + term;
    float total = 0;
    for (int c = 0; c < TEN; c++) total += sums[c][0];
    return total;
}
