#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: helper_safetensors_files
"""What the stock safetensors package and PyTorch write comes out of cairn::safetensors_files as it went in.

usage: test_safetensors_files.py HELPER

PyTorch's part runs where this Python has torch: its writer of Hugging Face checkpoints on several ranks, as whole
tensors and as shards, of FSDP as well; that of transformers where it has them: models in one file, in several, with tied
weights, and in the layout of its cache.
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
try:
    import transformers
except ImportError:
    transformers = None

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
    expected = lines_of_torch(torch_tensors())
    plain = f"{root}/plain"
    mapping = {name: 1 + number % 2 for number, name in enumerate(torch_tensors())}
    dcp.save(torch_tensors(), no_dist=True,
             storage_writer=dcp.HuggingFaceStorageWriter(plain, fqn_to_index_mapping=mapping))
    check(expected, plain)
    sharded = f"{root}/sharded"
    torch.multiprocessing.spawn(write_sharded, args=(3, sharded, f"{root}/rendezvous"), nprocs=3)
    check(expected, sharded)
    assert len(os.listdir(sharded)) == 3


def write_fsdp(rank, world, root, port):
    """One rank of a job that trains with FSDP2 and saves what it has."""
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import torch.distributed.checkpoint as dcp  # pylint: disable=import-outside-toplevel
    from torch.distributed.device_mesh import init_device_mesh  # pylint: disable=import-outside-toplevel
    from torch.distributed.fsdp import fully_shard  # pylint: disable=import-outside-toplevel
    dist.init_process_group("gloo", init_method=f"file://{port}", rank=rank, world_size=world)
    model = fsdp_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    dcp.save(model.state_dict(), storage_writer=dcp.HuggingFaceStorageWriter(root, save_distributed=True))
    dist.destroy_process_group()


def fsdp_model():
    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 2, dtype=torch.bfloat16))


def lines_of_torch(tensors):
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
    return sorted(line(n, names[t.dtype], t.shape, bytes_of(t)) for n, t in tensors.items())


def check_fsdp(root):
    torch.multiprocessing.spawn(write_fsdp, args=(3, root, f"{root}.rendezvous"), nprocs=3)
    check(lines_of_torch({n: t.detach() for n, t in fsdp_model().state_dict().items()}), root)


def check_transformers(root):
    transformers.utils.logging.disable_progress_bar()
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=500, n_positions=64))
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=300,
        tie_word_embeddings=False)).to(torch.bfloat16)
    for name, model in (("gpt2", gpt2), ("llama", llama)):
        # Of weights that are tied, one name is written.
        seen, tensors = set(), {}
        for key, tensor in model.state_dict().items():
            if tensor.data_ptr() not in seen:
                tensors[key] = tensor
            seen.add(tensor.data_ptr())
        for size, directory in (("20KB", f"{root}/{name}-many"), ("1GB", f"{root}/{name}-one")):
            model.save_pretrained(directory, max_shard_size=size)
            assert (len([f for f in os.listdir(directory) if f.endswith(".safetensors")]) > 2) == (size == "20KB")
            check(lines_of_torch(tensors), directory)
        snapshot, blobs = f"{root}/{name}/snapshots/0a1b", f"{root}/{name}/blobs"
        os.makedirs(snapshot)
        os.mkdir(blobs)
        for number, file in enumerate(os.listdir(f"{root}/{name}-many")):
            os.rename(f"{root}/{name}-many/{file}", f"{blobs}/{number:064x}")
            os.symlink(f"../../blobs/{number:064x}", f"{snapshot}/{file}")
        check(lines_of_torch(tensors), snapshot)


def main():
    with tempfile.TemporaryDirectory() as root:
        os.mkdir(f"{root}/stock")
        check_safetensors(f"{root}/stock")
        if torch is not None:
            os.mkdir(f"{root}/torch")
            check_torch(f"{root}/torch")
            check_fsdp(f"{root}/fsdp")
        if transformers is not None:
            check_transformers(f"{root}/transformers")
    print("what safetensors" + (" and PyTorch write" if torch is not None else " writes") + " is read as it was written")


if __name__ == "__main__":
    main()
