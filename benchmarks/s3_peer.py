#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uploads and downloads of one object by the S3 clients of Python: s3torchconnector, boto3's transfer manager, and the
latter over AWS's C runtime where awscrt is installed. bench_object_store --peers calls it in turns with its own.

usage: s3_peer.py ENDPOINT MEBIBYTES

Prints the names of the clients that are installed, on one line; then answers each line `NAME up|down KEY` of its standard
input by the seconds. Credentials come from the environment. What was downloaded is compared with what was uploaded.
"""

import argparse
import importlib.util
import os
import sys
import time


class torch_connector:
    def __init__(self, endpoint):
        from s3torchconnector import S3Checkpoint, S3ClientConfig

        self.checkpoint = S3Checkpoint(
            region="us-east-1", endpoint=endpoint, s3client_config=S3ClientConfig(force_path_style=True)
        )

    def up(self, key, data):
        with self.checkpoint.writer(f"s3://bucket/{key}") as writer:
            writer.write(data)

    def down(self, key, into):
        with self.checkpoint.reader(f"s3://bucket/{key}") as reader:
            if reader.readinto(into) != len(into):
                raise RuntimeError("a short read")


class memory_file:
    """A seekable file over memory that is there already; io.BytesIO would take new memory each time."""

    def __init__(self, memory):
        self.memory = memory
        self.place = 0

    def seekable(self):
        return True

    def seek(self, offset, whence=0):
        self.place = offset + (0, self.place, len(self.memory))[whence]
        return self.place

    def tell(self):
        return self.place

    def write(self, data):
        self.memory[self.place : self.place + len(data)] = data
        self.place += len(data)
        return len(data)


class boto:
    def __init__(self, endpoint, runtime="classic"):
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        self.client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", config=Config(s3={"addressing_style": "path"})
        )
        self.config = TransferConfig(preferred_transfer_client=runtime)

    def up(self, key, data):
        import io

        self.client.upload_fileobj(io.BytesIO(data), "bucket", key, Config=self.config)

    def down(self, key, into):
        self.client.download_fileobj("bucket", key, memory_file(into), Config=self.config)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("endpoint")
    parser.add_argument("mebibytes", type=int)
    arguments = parser.parse_args()
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    clients = {}
    if importlib.util.find_spec("s3torchconnector"):
        clients["s3torchconnector"] = torch_connector(arguments.endpoint)
    if importlib.util.find_spec("boto3"):
        clients["boto3"] = boto(arguments.endpoint)
        if importlib.util.find_spec("awscrt"):
            clients["boto3_crt"] = boto(arguments.endpoint, "crt")
    print(" ".join(clients), flush=True)
    data = os.urandom(arguments.mebibytes << 20)
    back = memoryview(bytearray(len(data)))
    for line in sys.stdin:
        name, what, key = line.split()
        begin = time.monotonic()
        if what == "up":
            clients[name].up(key, data)
        else:
            clients[name].down(key, back)
        seconds = time.monotonic() - begin
        if what == "down" and back != data:
            raise RuntimeError("what was read is not what was written")
        print(f"{seconds:.6f}", flush=True)


main()
