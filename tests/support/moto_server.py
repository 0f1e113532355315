# SPDX-License-Identifier: Apache-2.0
"""moto's S3 on a free port of the loopback interface: prints the port, makes the bucket `checkpoints`, and ends with its
standard input."""
import logging
import os
import sys
import threading

for name in list(os.environ):
    if name.lower().endswith("_proxy"):
        del os.environ[name]
os.environ.setdefault("AWS_ACCESS_KEY_ID", "moto")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "moto-secret")

from moto.server import DomainDispatcherApplication, ThreadedMotoServer

# Its threads look whether there is an object and then make one: where a thread stops in between, two writers of one key are
# both told that theirs stands, which S3 never does. So one request is answered after the other.
answer = DomainDispatcherApplication.__call__
one_at_a_time = threading.Lock()


def answer_alone(self, environ, start_response):
    with one_at_a_time:
        return answer(self, environ, start_response)


DomainDispatcherApplication.__call__ = answer_alone
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
import urllib.request

urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/checkpoints", method="PUT", headers={
    "Authorization": "AWS4-HMAC-SHA256 Credential=moto/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}), data=b"").read()
print(port, flush=True)
sys.stdin.read()
os._exit(0)
