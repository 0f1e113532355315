#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: helper_safetensors_files
"""What the stock safetensors package and PyTorch write comes out of cairn::safetensors_files as it went in.

usage: test_safetensors_files.py HELPER

PyTorch's part runs where this Python has torch: its writer of Hugging Face checkpoints on several ranks, as whole
tensors and as shards.
"""

import json
import os
import sys
import tempfile
import zlib

try:
    import numpy
    from safetensors.numpy import save_file
except ImportError:
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None

from python.programs import run

HELPER = os.path.abspath(sys.argv[1])
NAMES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
         "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64"}


def line(name, dtype, shape, data):
    return f"{name} {dtype} [{', '.join(map(str, shape))}] {zlib.crc32(data):08x}"


def lines(tensors):
    return sorted(line(n, NAMES[t.dtype.name], t.shape, numpy.ascontiguousarray(t).tobytes()) for n, t in tensors.items())


def check(expected, *paths):
    for ranks in 1, 3:
        said = run(HELPER, ranks, *paths).splitlines()
        assert said == expected, f"with {ranks} ranks, {paths}: {said}\nnot {expected}"


def make_tensors(seed):
    dice = numpy.random.default_rng(seed)
    tensors = {f"{seed}.{name}": dice.integers(0, 2, (5, 7)).astype(name) for name in NAMES}
    tensors[f"{seed}.large"] = dice.standard_normal((301, 1013), dtype=numpy.float32)
    tensors[f"{seed}.scalar"] = numpy.array(3.5, dtype=numpy.float64)
    tensors[f"{seed}.empty"] = numpy.zeros((0, 3), dtype=numpy.float32)
    tensors[f"{seed}.deep"] = dice.standard_normal((2, 3, 4, 5, 2), dtype=numpy.float32)
    return tensors


def check_safetensors(root):
    one, two = make_tensors(1), make_tensors(2)
    files = [f"{root}/model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    save_file(one, files[0], metadata={"format": "pt", "note": "any text"})
    check(lines(one), files[0])
    save_file(two, files[1])
    check(lines({**one, **two}), root)
    check(lines({**one, **two}), *files)
    save_file({"1.large": two["2.large"]}, f"{root}/extra.safetensors")
    assert "two files hold" in run(HELPER, 1, root, status=1)
    weight_map = {name: os.path.basename(file) for file, part in zip(files, (one, two)) for name in part}
    with open(f"{root}/model.safetensors.index.json", "w", encoding="utf-8") as index:
        json.dump({"metadata": {"total_size": 1}, "weight_map": weight_map}, index)
    check(lines({**one, **two}), root)


def bytes_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write_sharded(rank, world, root, port):
    """One rank of a job that saves with PyTorch's own writer."""
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import torch.distributed.checkpoint as dcp  # pylint: disable=import-outside-toplevel
    from torch.distributed.device_mesh import init_device_mesh  # pylint: disable=import-outside-toplevel
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # pylint: disable=import-outside-toplevel
    dist.init_process_group("gloo", init_method=f"file://{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    state = {name: distribute_tensor(tensor, mesh, [Shard(0) if tensor.dim() and tensor.shape[0] > 1 else Replicate()])
             for name, tensor in torch_tensors().items()}
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(root, save_distributed=True))
    dist.destroy_process_group()


def torch_tensors():
    torch.manual_seed(7)
    return {"rows": torch.randn(10, 6), "uneven": torch.randn(7, 3).to(torch.bfloat16), "half": torch.randn(40).half(),
            "count": torch.tensor([12]), "wide": torch.randn(1, 500)}


def check_torch(root):
    import torch.distributed.checkpoint as dcp  # pylint: disable=import-outside-toplevel
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
    expected = sorted(line(n, names[t.dtype], t.shape, bytes_of(t)) for n, t in torch_tensors().items())
    plain = f"{root}/plain"
    mapping = {name: 1 + number % 2 for number, name in enumerate(torch_tensors())}
    dcp.save(torch_tensors(), no_dist=True,
             storage_writer=dcp.HuggingFaceStorageWriter(plain, fqn_to_index_mapping=mapping))
    check(expected, plain)
    sharded = f"{root}/sharded"
    torch.multiprocessing.spawn(write_sharded, args=(3, sharded, f"{root}/rendezvous"), nprocs=3)
    check(expected, sharded)
    assert len(os.listdir(sharded)) == 3


def main():
    with tempfile.TemporaryDirectory() as root:
        os.mkdir(f"{root}/stock")
        check_safetensors(f"{root}/stock")
        if torch is not None:
            os.mkdir(f"{root}/torch")
            check_torch(f"{root}/torch")
    print("what safetensors" + (" and PyTorch write" if torch is not None else " writes") + " is read as it was written")


if __name__ == "__main__":
    main()
