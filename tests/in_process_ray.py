"""As much of Ray as the engine uses, in this process: answers come in any order, actors die when they are told to."""

import random
from types import SimpleNamespace


class RayError(Exception):
    pass


class ObjectLostError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Reference:
    def __init__(self, value=None, error=None, owner=None):
        self.value, self.error, self.owner = value, error, owner


class Method:
    def __init__(self, actor, name, returns=1):
        self.actor, self.name, self.returns = actor, name, returns

    def options(self, num_returns):
        return Method(self.actor, self.name, num_returns)

    def remote(self, *arguments):
        self.actor.ray.calls += 1
        self.actor.called.append(self.name)
        if {self.actor.ray.calls, self.name} & self.actor.ray.deaths:
            self.actor.ray.lose(self.actor)
        values, error = [None] * self.returns, None
        try:
            if self.actor.dead:
                raise RayError("the actor is dead")
            resolved = [self.actor.ray.get(a) if isinstance(a, Reference) else a for a in arguments]
            answer = getattr(self.actor.instance, self.name)(*resolved)
            values = list(answer) if self.returns > 1 else [answer]
        except RayError as lost:
            error = lost
        except Exception as cause:
            error = RayTaskError(cause)
        references = [Reference(value, error, self.actor) for value in values]
        self.actor.ray.made += references
        return references if self.returns > 1 else references[0]


class Actor:
    def __init__(self, ray, kind, arguments):
        self.ray, self.instance, self.dead = ray, kind(*arguments), False
        self.called, self.slow = [], len(ray.actors) in ray.slow
        ray.actors.append(self)

    def __getattr__(self, name):
        return Method(self, name)


class InProcessRay:
    """A cluster of one process.

    `deaths` are numbers of calls, or methods, that cost the node of the actor called. `slow` are numbers of actors
    whose answers come when there is nobody else's to wait for.
    """

    exceptions = SimpleNamespace(RayError=RayError, ObjectLostError=ObjectLostError, RayTaskError=RayTaskError)

    def __init__(self, deaths=(), seed=0, slow=()):
        self.slow = set(slow)
        self.deaths, self.calls, self.made, self.lost, self.actors = set(deaths), 0, [], 0, []
        self._random = random.Random(seed)

    def put(self, value):
        return Reference(value)

    def get(self, reference):
        if reference.error is not None:
            raise reference.error
        return reference.value

    def wait(self, references, num_returns, timeout):
        shuffled = list(references)
        self._random.shuffle(shuffled)
        shuffled.sort(key=lambda reference: reference.owner.slow)
        if not shuffled[0].owner.slow:
            num_returns = min(num_returns, sum(not reference.owner.slow for reference in shuffled))
        return shuffled[:num_returns], shuffled[num_returns:]

    def remote(self, **options):
        return lambda kind: SimpleNamespace(remote=lambda *arguments: Actor(self, kind, arguments))

    def kill(self, actor):
        actor.dead = True

    def lose(self, actor):
        actor.dead = True
        for reference in self.made:
            if reference.owner is actor:
                reference.error, reference.value = ObjectLostError("its node is gone"), None
                self.lost += 1


def cluster_of(workers, deaths=(), seed=0, slow=()):
    return SimpleNamespace(
        ray=InProcessRay(deaths, seed, slow),
        workers=workers,
        is_lost=False,
        look_after=lambda: None,
        close=lambda: None,
    )
