# SPDX-License-Identifier: Apache-2.0
"""Prints requests and the signatures that botocore gives them, one a line, for test_s3_store:

    METHOD KEY EPOCH PAYLOAD_HASH SIGNATURE TOKEN QUERY... -- HEADER...

Keys, tokens, names and values are in hexadecimal after an x; QUERY and HEADER are NAME=VALUE. The first sixty have the keys that signers
stumble over."""
import calendar
import hashlib
import random
import time
from urllib.parse import quote

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

KEYS = (
    [f"a{c}b" for c in " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
    + ["a b/c  d", " leading", "trailing ", "+", "%", "%20", "%2F", "%zz", "a%2Fb", "~", "~~/~", "a+b c", "=", "a=b&c=d", "?uploads",
       "\u00e9", "\u65e5\u672c\u8a9e/\u30ad\u30fc", "\U0001f600", "caf\u00e9 + cr\u00e8me", "a//b", "trailing/", "...", "a/.../b", "-", "_",
       ".hidden", "A" * 1000, "tab\tkey"]
)
assert len(KEYS) >= 60
RANDOM = random.Random(6)
LETTERS = "abcXYZ019 -_.~!$&'()*+,;=:@/?#[]%\"<>\\^`{|}\u00e9\u4e2d"


def text(most, letters=LETTERS):
    return "".join(RANDOM.choice(letters) for _ in range(RANDOM.randint(1, most)))


def packed(value):
    return "x" + value.encode().hex()


for number in range(260):
    key = KEYS[number] if number < len(KEYS) else text(40)
    method = RANDOM.choice(["GET", "PUT", "HEAD", "POST", "DELETE"])
    token = text(30, "abcXYZ/+=") if RANDOM.random() < 0.3 else ""
    query = {text(10, "abcXYZ-_ +"): text(12) if RANDOM.random() < 0.8 else "" for _ in range(RANDOM.randint(0, 4))}
    headers = {}
    if RANDOM.random() < 0.5:
        headers["Range"] = "bytes=%d-%d" % (RANDOM.randint(0, 99), RANDOM.randint(100, 999))
    if RANDOM.random() < 0.5:
        headers["If-None-Match"] = "*"
    for _ in range(RANDOM.randint(0, 3)):
        headers["x-amz-meta-" + text(6, "abcxyz-").strip("-") + "q"] = text(20, "abc  =;,\"'z").strip() or "v"
    body = text(50).encode()
    request = AWSRequest(method=method, url="http://bucket.example.com/" + quote(key, safe="/~"), params=query, headers=headers, data=body)
    S3SigV4Auth(Credentials("AKIDEXAMPLE", "the-secret-of-the-tests", token or None), "s3", "us-east-1").add_auth(request)
    epoch = calendar.timegm(time.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ"))
    authorization = request.headers["Authorization"]
    payload = request.headers["X-Amz-Content-SHA256"]
    assert payload == hashlib.sha256(body).hexdigest()
    words = [method, packed(key), str(epoch), payload, authorization.rsplit("=", 1)[1], packed(token)]
    words += [packed(n) + "=" + packed(v) for n, v in query.items()]
    words.append("--")
    words += [packed(n) + "=" + packed(v) for n, v in headers.items()]
    print(*words)
