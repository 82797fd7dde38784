# SPDX-License-Identifier: MIT
#
# Saves of tensors that are on a CUDA device, for tests that have the simulated runtime (tests/lib/simcuda.c), which
# computes nothing. So what is saved comes from the host, and what changes it, as an optimizer would, is zero_(), right
# behind each save. Each program says whether what it reads back is what was there before. Deterministic: two runs give
# the same bytes, but for volatile.pt. TENSORS: sizes in elements, else a few small ones.
import contextlib
import os
import warnings

import torch

from common import main, say

SIZES = [int(n) for n in os.environ.get("TENSORS", "9000001,1500000,300000,1000,7").split(",")]
warnings.simplefilter("ignore")


class Net(torch.nn.Module):
    """No matrix product: that is cuBLAS, which wants a real driver."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList([torch.nn.Parameter(torch.empty(n)) for n in SIZES])

    def forward(self):
        return sum((p * p + p).sum() for p in self.layers)


def values(seed):
    return [(torch.arange(n, dtype=torch.int64) * (2 * seed + 3) % 1000003).to(torch.float32) for n in SIZES]


class Job:
    """A model that has made a step, and an optimizer that has state."""

    def __init__(self, seed):
        self.wanted = values(seed)
        self.net = Net().cuda()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.net().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.fill(self.wanted)

    def fill(self, wanted):
        """What the step has made of it."""
        with torch.no_grad():
            for p, value in zip(self.net.layers, wanted):
                p.copy_(value)
                self.optimizer.state[p]["exp_avg"].copy_(value)
                self.optimizer.state[p]["exp_avg_sq"].copy_(value)

    def state(self):
        """Of the optimizer one tensor, all else is a copy of the same."""
        return {"model": self.net.state_dict(), "exp_avg": self.optimizer.state[self.net.layers[0]]["exp_avg"],
                "step": 7}

    def goes_on(self):
        with torch.no_grad():
            for p in self.net.layers:
                p.zero_()
                self.optimizer.state[p]["exp_avg"].zero_()

    def same(self, state, prefix="layers."):
        """Is that what was there before it went on?"""
        found = [torch.equal(state["model"][prefix + str(i)].cpu(), w) for i, w in enumerate(self.wanted)]
        return all(found + [torch.equal(state["exp_avg"].cpu(), self.wanted[0]), state["step"] == 7])


@contextlib.contextmanager
def marked(name):
    """The part of a runtime's trace that says what a save calls."""
    say("-", name)
    torch.cuda.cudart().cudaProfilerStart()
    yield
    torch.cuda.cudart().cudaProfilerStop()


def saved(seed, path, **kw):
    job = Job(seed)
    with marked(path):
        torch.save(job.state(), path, **kw)
    job.goes_on()
    say(path, job.same(torch.load(path, map_location="cpu")), job.same(torch.load(path)))


def torch_save():
    saved(1, "m.pt")


def legacy():
    saved(2, "volatile.pt", _use_new_zipfile_serialization=False)


def pinned():
    from torch.utils.serialization import config
    config.save.use_pinned_memory_for_d2h = True
    saved(3, "pinned.pt")
    config.save.use_pinned_memory_for_d2h = False


def without_crc():
    torch.serialization.set_crc32_options(False)
    saved(4, "without.pt")
    torch.serialization.set_crc32_options(True)


def safetensors():
    from safetensors.torch import load_file, save_file
    job = Job(5)
    with marked("safetensors"):
        save_file({k: v.contiguous() for k, v in job.net.state_dict().items()}, "m.safetensors")
    job.goes_on()
    read = load_file("m.safetensors")
    say("safetensors", all(torch.equal(read["layers.%d" % i], w) for i, w in enumerate(job.wanted)))


def checkpoints():
    """DCP, with names that are the same in each run."""
    import torch.distributed.checkpoint as checkpoint
    checkpoint.filesystem._generate_uuid = lambda: "7"
    return checkpoint


def read_back(job, where):
    state = Job(0).state()
    checkpoints().load(state, checkpoint_id=where, no_dist=True)
    say(where, job.same(state))


def dcp():
    job = Job(6)
    with marked("dcp"):
        checkpoints().save(job.state(), checkpoint_id="dcp", no_dist=True)
    job.goes_on()
    read_back(job, "dcp")


def dcp_async():
    """Its own stager: everything is on the host when it returns."""
    job = Job(7)
    with marked("async"):
        done = checkpoints().async_save(job.state(), checkpoint_id="async", no_dist=True)
    job.goes_on()
    done.result()
    read_back(job, "async")


def dcp_stager():
    """Pinned shared memory, in another thread and stream."""
    from torch.distributed.checkpoint.staging import DefaultStager
    job = Job(8)
    stager = DefaultStager()
    with marked("stager"):
        response = checkpoints().async_save(job.state(), checkpoint_id="stager", async_stager=stager, no_dist=True)
        response.staging_completion.result()
    job.goes_on()
    response.upload_completion.result()
    stager.close()
    read_back(job, "stager")


def host():
    """Copies by the program's own hand."""
    job = Job(9)
    with marked("non_blocking"):
        copies = [p.detach().to("cpu", non_blocking=True) for p in job.net.layers]
        torch.cuda.synchronize()
    say("non_blocking", all(torch.equal(c, w) for c, w in zip(copies, job.wanted)))
    with marked("item"):
        item = job.net.layers[0][5].item()
    say("item", item == job.wanted[0][5].item())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), marked("cpu"):
        copies = [p.detach().cpu() for p in job.net.layers]
    job.goes_on()
    say("cpu", all(torch.equal(c, w) for c, w in zip(copies, job.wanted)))


def captured():
    """A graph, captured and launched beside a save."""
    job = Job(10)
    x = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.fill_(3)
    torch.save(job.state(), "captured.pt")
    say("captured", x[0].item(), job.same(torch.load("captured.pt")))
    graph.replay()
    say("replayed", x[0].item())


main(globals())
