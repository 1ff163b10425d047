"""An optimizer in your own loop, with gradients that come late.

    python examples/own_loop.py

Seven workers take turns in a plain Python loop. Gradients of the rare class take longer, so they arrive late. Three
rules train the same small network on the same arrivals, and only the line that creates the optimizer differs. It takes
a few seconds. `own_loop.ipynb` is this file as a notebook.
"""

# %% [markdown]
# ## Data
# Points of three classes in the plane. Class 2 is rare: one batch in ten, and such a batch takes six times as long.

# %%
import heapq

import torch
from torch import nn

import latecomer as lc

CENTRES = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.2]])


def batch(number):
    """Return the batch of a job, all of one kind, and how long its gradient takes."""
    draws = torch.Generator().manual_seed(number)
    rare = number % 10 == 9
    labels = torch.full((32,), 2) if rare else torch.randint(2, (32,), generator=draws)
    return CENTRES[labels] + 0.5 * torch.randn(32, 2, generator=draws), labels, 6.0 if rare else 1.0


# %% [markdown]
# ## The loop
# A worker starts with the parameters of now, and remembers their *version*. When its gradient arrives, `opt.version`
# has moved on. The difference is the delay. That is all a rule needs to know.


# %%
def train(make_optimizer, updates=1000, workers=7):
    """Train with late gradients; return the model and the delays of common and of rare batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
    worker_model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
    opt = make_optimizer(model.parameters())
    jobs, delays = [], {False: [], True: []}

    def start(number, now):
        point = {name: value.detach().clone() for name, value in model.state_dict().items()}
        inputs, labels, duration = batch(number)
        heapq.heappush(jobs, (now + duration, number, opt.version, point, inputs, labels))

    for number in range(workers):
        start(number, now=0.0)
    for arrival in range(updates):
        now, number, version, point, inputs, labels = heapq.heappop(jobs)
        worker_model.load_state_dict(point)
        worker_model.zero_grad()
        nn.functional.cross_entropy(worker_model(inputs), labels).backward()
        for here, there in zip(model.parameters(), worker_model.parameters(), strict=True):
            here.grad = there.grad
        delay = opt.version - version
        delays[number % 10 == 9].append(delay)
        opt.step(delay=delay)
        start(workers + arrival, now)
    return model, delays


# %% [markdown]
# ## Three rules on the same arrivals
# `beta` is the weight of the *new* gradient: torch's `momentum=0.9` is `beta=0.1`.

# %%
RULES = {
    "momentum (ignores the delay)": lambda params: lc.optim.Momentum(params, lr=0.5, beta=0.1),
    "ordered momentum (Algorithm 1)": lambda params: lc.optim.OrderedMomentum(params, lr=0.5, beta=0.1),
    "catch-up": lambda params: lc.optim.OrderedMomentum(params, lr=0.5, beta=0.1, catch_up=True),
}
held_out = [batch(number) for number in range(100_000, 100_100)]

for name, make in RULES.items():
    model, delays = train(make)
    right = {False: [], True: []}
    for inputs, labels, duration in held_out:
        right[duration > 1].append((model(inputs).argmax(1) == labels).float().mean().item())
    common, rare = (sum(found) / len(found) for found in (right[False], right[True]))
    print(f"{name:<31} common {common:.3f}, rare {rare:.3f}")

late = [sum(values) / len(values) for values in (delays[False], delays[True])]
print(f"mean delay: common {late[0]:.1f}, rare {late[1]:.1f}")

# %% [markdown]
# The rare class is learnt worse under the rule that gives its late gradients less weight. This is one run at one
# learning rate: it shows what a delay does, and ranks nothing. `(1 - beta) ** delay` is what ordering leaves of a
# gradient:
# %%
print(f"influence of a rare gradient under ordering: {0.9 ** late[1]:.2f}, of a common one: {0.9 ** late[0]:.2f}")
