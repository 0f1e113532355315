#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# needs: helper_s3_server
"""The scripted S3 server, checked with botocore as the client: what a real client signs and sends must be accepted,
what S3 refuses must be refused with S3's words, and faults must do what their names say.

usage: test_s3_server.py HELPER_S3_SERVER
"""

import base64
import contextlib
import hashlib
import http.client
import os
import socket
import sys
import time
import zlib

from python.scripted_server import ScriptedServer

try:
    import boto3
    import botocore.auth
    import botocore.awsrequest
    import botocore.config
    import botocore.credentials
    import botocore.exceptions
except ImportError:
    print("boto3 is not installed: pip install boto3")
    sys.exit(77)

SERVER = os.path.abspath(sys.argv[1])
ACCESS, SECRET = "AKIDCAIRNTESTS", "scripted/secret+key=of~the.tests"

# Keys that a signer or a server may spell in two ways.
NASTY_KEYS = [
    "plain", "with space", "two  spaces", " leading", "trailing ", "a+b", "a%20b", "a%2Fb", "a=b", "a&b", "a?b", "a#b", "a;b",
    "a:b", "a@b", "a$b", "a,b", "a'b", 'a"b', "a(b)", "a!b", "a*b", "a~b", "a[b]", "a{b}", "a|b", "a\\b", "a^b", "a`b", "a<b>",
    "ünïcödé", "日本語", "emoji-\U0001f600", "a/b/c", "a//b", "a/", "//a", "./a", "a/./b", "a/..b", "..a", ".hidden", "a.b", "-a", "_a",
    "%", "%%", "%41", "100%", "a%zz", "+", "++", "=", "&amp;", "<key>", "a\tb", "a\x7fb", "x" * 1024, "step-00001200/rank-00003.0.safetensors",
    "uploads", "?uploads", "a?uploadId=b", "e\u0301", "\u00e9",
]


_resolve = socket.getaddrinfo
# NAME.localhost is this host, by RFC 6761, but not for every resolver.
socket.getaddrinfo = lambda host, *rest, **more: _resolve("127.0.0.1" if str(host).endswith("localhost") else host, *rest, **more)


class Server(ScriptedServer):
    def __init__(self, *options):
        super().__init__(SERVER, "--min-part=1024", *options)
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def client(self, access=ACCESS, secret=SECRET, token=None, region="us-east-1", style="path", retries=0, endpoint=None, **more):
        return boto3.client("s3", endpoint_url=endpoint or self.endpoint, aws_access_key_id=access, aws_secret_access_key=secret,
                            aws_session_token=token, region_name=region,
                            config=botocore.config.Config(signature_version="s3v4", s3={"addressing_style": style}, read_timeout=60,
                                                          retries={"total_max_attempts": retries + 1}, **more))


@contextlib.contextmanager
def server(*options):
    made = Server(*options)
    try:
        yield made
    finally:
        made.close()


def refused(code, status, call, **arguments):
    """The error that a call must end with."""
    try:
        call(**arguments)
    except botocore.exceptions.ClientError as error:
        found = (error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"])
        assert found == (code, status), (found, code, status)
        return error.response
    raise AssertionError(f"{call.__name__} {arguments} was not refused with {code}")


def breaks(call, **arguments):
    """A call that must end without an answer that means something."""
    try:
        call(**arguments)
    except botocore.exceptions.ClientError as error:
        assert error.response["Error"]["Code"] == "500", error  # what botocore makes of a success that says nothing
        return
    except (botocore.exceptions.HTTPClientError, botocore.exceptions.ConnectionError, botocore.exceptions.BotoCoreError):
        return
    raise AssertionError(f"{call.__name__} {arguments} was answered")


def check_objects(it):
    s3 = it.client()
    for key in NASTY_KEYS:
        data = key.encode()
        made = s3.put_object(Bucket="bucket", Key=key, Body=data, Metadata={"run": "7"})
        assert made["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
        got = s3.get_object(Bucket="bucket", Key=key)
        assert got["Body"].read() == data and got["Metadata"] == {"run": "7"}, key
        assert s3.head_object(Bucket="bucket", Key=key)["ContentLength"] == len(data)
    keys = [entry["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket="bucket", PaginationConfig={"PageSize": 7})
            for entry in page.get("Contents", [])]
    assert keys == sorted(NASTY_KEYS, key=lambda key: key.encode()), set(keys) ^ set(NASTY_KEYS)
    page = s3.list_objects_v2(Bucket="bucket", Prefix="a/", Delimiter="/")
    assert [entry["Prefix"] for entry in page["CommonPrefixes"]] == ["a/./", "a//", "a/b/"], page
    assert [entry["Key"] for entry in page["Contents"]] == ["a/", "a/..b"], page
    found = []
    for one in s3.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix="a", Delimiter="/", PaginationConfig={"PageSize": 1}):
        assert one["KeyCount"] == 1
        found += [entry["Prefix"] for entry in one.get("CommonPrefixes", [])] + [entry["Key"] for entry in one.get("Contents", [])]
    assert len(found) == len(set(found)) and "a/" in found and "a+b" in found, found
    refused("InvalidArgument", 400, s3.list_objects_v2, Bucket="bucket", ContinuationToken="made up")
    s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": key} for key in NASTY_KEYS if "\x7f" not in key]})
    s3.delete_object(Bucket="bucket", Key="a\x7fb")
    s3.delete_object(Bucket="bucket", Key="is not there")
    assert s3.list_objects_v2(Bucket="bucket")["KeyCount"] == 0
    refused("NoSuchBucket", 404, s3.list_objects_v2, Bucket="other")
    refused("404", 404, s3.head_object, Bucket="bucket", Key="is not there")
    refused("NoSuchKey", 404, s3.get_object, Bucket="bucket", Key="is not there")

    virtual = it.client(style="virtual", endpoint=f"http://localhost:{it.port}")
    virtual.put_object(Bucket="bucket", Key="a b/c", Body=b"virtual")
    assert s3.get_object(Bucket="bucket", Key="a b/c")["Body"].read() == b"virtual"


def check_ranges(it):
    s3 = it.client()
    data = bytes(range(200))
    etag = s3.put_object(Bucket="bucket", Key="ranges", Body=data)["ETag"]
    s3.put_object(Bucket="bucket", Key="nothing", Body=b"")
    for text, expected in {"bytes=0-0": data[:1], "bytes=10-19": data[10:20], "bytes=190-": data[190:], "bytes=-5": data[-5:],
                           "bytes=150-999": data[150:], "bytes=0-199": data}.items():
        got = s3.get_object(Bucket="bucket", Key="ranges", Range=text, IfMatch=etag)
        assert got["Body"].read() == expected and got["ResponseMetadata"]["HTTPStatusCode"] == 206, text
        begin = data.index(expected[0])
        assert got["ContentRange"] == f"bytes {begin}-{begin + len(expected) - 1}/200"
    refused("InvalidRange", 416, s3.get_object, Bucket="bucket", Key="ranges", Range="bytes=200-")
    refused("InvalidRange", 416, s3.get_object, Bucket="bucket", Key="nothing", Range="bytes=0-0")
    refused("PreconditionFailed", 412, s3.get_object, Bucket="bucket", Key="ranges", IfMatch='"other"')
    it.tell("put ranges replaced")
    refused("PreconditionFailed", 412, s3.get_object, Bucket="bucket", Key="ranges", IfMatch=etag, Range="bytes=0-3")


def check_conditions(it):
    s3 = it.client()
    s3.put_object(Bucket="bucket", Key="first", Body=b"1", IfNoneMatch="*")
    refused("PreconditionFailed", 412, s3.put_object, Bucket="bucket", Key="first", Body=b"2", IfNoneMatch="*")
    assert s3.get_object(Bucket="bucket", Key="first")["Body"].read() == b"1"
    refused("NotImplemented", 501, s3.put_object, Bucket="bucket", Key="first", Body=b"2", IfNoneMatch='"abc"')
    with server("--no-conditions") as other:
        old = other.client()
        for body in (b"1", b"2"):
            old.put_object(Bucket="bucket", Key="first", Body=body, IfNoneMatch="*")
        assert old.get_object(Bucket="bucket", Key="first")["Body"].read() == b"2"
    with server("--refuse-conditions", "--refuse-checksums") as other:
        old = other.client(request_checksum_calculation="when_required")
        refused("NotImplemented", 501, old.put_object, Bucket="bucket", Key="first", Body=b"1", IfNoneMatch="*")
        refused("NotImplemented", 501, old.put_object, Bucket="bucket", Key="first", Body=b"1", ChecksumCRC32="AAAAAA==")
        old.put_object(Bucket="bucket", Key="first", Body=b"1")


def crc32_of(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def check_checksums(it):
    s3 = it.client()
    # Known answers of the three CRCs for 123456789; botocore without its C library sends what it is given.
    known = {"ChecksumCRC32": "cbf43926", "ChecksumCRC32C": "e3069283", "ChecksumCRC64NVME": "ae8b14860a799888"}
    for name, value in known.items():
        text = base64.b64encode(bytes.fromhex(value)).decode()
        s3.put_object(Bucket="bucket", Key=name, Body=b"123456789", **{name: text})
        assert s3.head_object(Bucket="bucket", Key=name, ChecksumMode="ENABLED")[name] == text
        refused("BadDigest", 400, s3.put_object, Bucket="bucket", Key=name, Body=b"123456780", **{name: text})
        refused("InvalidRequest", 400, s3.put_object, Bucket="bucket", Key=name, Body=b"123456789", **{name: "AAA="})
    s3.put_object(Bucket="bucket", Key="long", Body=bytes(range(256)) * 40, ChecksumAlgorithm="CRC32")  # computed by botocore
    md5 = base64.b64encode(hashlib.md5(b"right").digest()).decode()
    s3.put_object(Bucket="bucket", Key="md5", Body=b"right", ContentMD5=md5)
    refused("BadDigest", 400, s3.put_object, Bucket="bucket", Key="md5", Body=b"wrong", ContentMD5=md5)
    refused("InvalidDigest", 400, s3.put_object, Bucket="bucket", Key="md5", Body=b"wrong", ContentMD5="not one")
    refused("InvalidRequest", 400, s3.put_object, Bucket="bucket", Key="two", Body=b"123456789",
            ChecksumCRC32C="4waSgw==", ChecksumCRC64NVME="rosUhgp5mIg=")


def check_multipart(it):
    s3 = it.client()
    where = {"Bucket": "bucket", "Key": "många delar/+"}
    parts = [bytes([i]) * 1500 for i in range(1, 6)] + [b"end"]

    def begin(**more):
        return {**where, "UploadId": s3.create_multipart_upload(**where, **more)["UploadId"]}

    def send(upload, numbers, **more):
        return [{"PartNumber": number, "ETag": s3.upload_part(**upload, PartNumber=number, Body=parts[number - 1], **more)["ETag"]}
                for number in numbers]

    upload = begin()
    sent = send(upload, [3, 1, 2, 6, 5, 4])  # in any order
    listed = [part for page in s3.get_paginator("list_parts").paginate(**upload, PaginationConfig={"PageSize": 2}) for part in page["Parts"]]
    assert [part["PartNumber"] for part in listed] == [1, 2, 3, 4, 5, 6] and listed[5]["Size"] == 3
    assert [one["UploadId"] for one in s3.list_multipart_uploads(Bucket="bucket", Prefix="m")["Uploads"]] == [upload["UploadId"]]
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="bucket", Prefix="x")
    refused("InvalidPartOrder", 400, s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": sent})
    sent.sort(key=lambda part: part["PartNumber"])
    wrong = [*sent[:5], {"PartNumber": 6, "ETag": '"wrong"'}]
    refused("InvalidPart", 400, s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": wrong})
    refused("InvalidPart", 400, s3.complete_multipart_upload, **upload,
            MultipartUpload={"Parts": [*sent, {"PartNumber": 7, "ETag": sent[0]["ETag"]}]})
    refused("MalformedXML", 400, s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": []})
    refused("404", 404, s3.head_object, **where)
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": sent}, IfNoneMatch="*", MpuObjectSize=7503)
    expected = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest() + "-6"
    assert done["ETag"] == f'"{expected}"', done
    assert s3.get_object(**where)["Body"].read() == b"".join(parts)
    assert s3.get_object(**where, Range="bytes=1499-3000")["Body"].read() == b"".join(parts)[1499:3001]
    refused("NoSuchUpload", 404, s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": sent})
    refused("NoSuchUpload", 404, s3.upload_part, **upload, PartNumber=1, Body=b"late")

    upload = begin()
    sent = send(upload, [1])
    refused("PreconditionFailed", 412, s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": sent}, IfNoneMatch="*")
    sent = [{"PartNumber": number, "ETag": s3.upload_part(**upload, PartNumber=number, Body=bytes(size))["ETag"]}
            for number, size in ((2, 1024), (3, 1023), (9, 1))]
    refused("EntityTooSmall", 400, s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": sent})
    s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": [sent[0], sent[2]]})
    upload = begin()
    refused("InvalidArgument", 400, s3.upload_part, **upload, PartNumber=10001, Body=b"x")
    refused("InvalidArgument", 400, s3.upload_part, **upload, PartNumber=0, Body=b"x")
    s3.abort_multipart_upload(**upload)
    refused("NoSuchUpload", 404, s3.abort_multipart_upload, **upload)
    refused("NoSuchUpload", 404, s3.list_parts, **upload)
    for _ in range(5):
        begin()
    pages = list(s3.get_paginator("list_multipart_uploads").paginate(Bucket="bucket", PaginationConfig={"PageSize": 2}))
    uploads = [one["UploadId"] for page in pages for one in page["Uploads"]]
    assert len(pages) == 3 and len(set(uploads)) == 5
    for upload_id in uploads:
        s3.abort_multipart_upload(**where, UploadId=upload_id)
    assert it.tell("uploads") == ["0"]

    # One checksum of the whole, and one of checksums.
    upload = begin(ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    sent = [{**one, "ChecksumCRC32": crc32_of(parts[one["PartNumber"] - 1])} for one in send(upload, [1, 2], ChecksumAlgorithm="CRC32")]
    refused("BadDigest", 400, s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": sent}, ChecksumCRC32="AAAAAA==",
            ChecksumType="FULL_OBJECT")
    whole = crc32_of(parts[0] + parts[1])
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": sent}, ChecksumCRC32=whole, ChecksumType="FULL_OBJECT")
    assert done["ChecksumCRC32"] == whole and done["ChecksumType"] == "FULL_OBJECT", done
    upload = begin(ChecksumAlgorithm="CRC32")
    sent = send(upload, [1, 2], ChecksumAlgorithm="CRC32")
    refused("InvalidRequest", 400, s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": sent})
    refused("InvalidRequest", 400, s3.upload_part, **upload, PartNumber=3, Body=b"123456789", ChecksumCRC32C="4waSgw==")
    sent = [{**one, "ChecksumCRC32": crc32_of(parts[one["PartNumber"] - 1])} for one in sent]
    done = s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": sent})
    digests = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts[:2])
    assert done["ChecksumCRC32"] == crc32_of(digests) + "-2", done


def raw(it, method, path, headers=(), body=b""):
    connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=60)
    connection.request(method, path, body, dict(headers))
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer


def signed_headers(it, method, path, body=b""):
    request = botocore.awsrequest.AWSRequest(method, it.endpoint + path, data=body)
    botocore.auth.S3SigV4Auth(botocore.credentials.Credentials(ACCESS, SECRET), "s3", "us-east-1").add_auth(request)
    return dict(request.headers)


def signed(it, method, path, body=b"", change=None):
    """What botocore signs, perhaps with something changed after that."""
    headers = signed_headers(it, method, path, body)
    if change:
        change(headers)
    return raw(it, method, path, headers, body)


def check_signatures(it):
    def ask(**more):
        return it.client(**more).list_objects_v2

    refused("SignatureDoesNotMatch", 403, ask(secret="wrong"), Bucket="bucket")
    refused("InvalidAccessKeyId", 403, ask(access="AKIDWRONG"), Bucket="bucket")
    refused("InvalidToken", 400, ask(token="not asked for"), Bucket="bucket")
    it.tell("clear-journal")
    ask(region="eu-west-1")(Bucket="bucket")  # botocore goes where the error says
    assert [line.split("\t")[5] for line in it.tell("journal")] == ["AuthorizationHeaderMalformed", ""], it.tell("journal")
    for seconds in (-3600, 3600):
        it.tell(f"clock {seconds}")
        refused("RequestTimeTooSkewed", 403, ask(), Bucket="bucket")
    it.tell("clock 0")

    status, text, _ = raw(it, "GET", "/bucket?list-type=2")
    assert status == 403 and "AccessDenied" in text

    assert signed(it, "PUT", "/bucket/tampered", b"data")[0] == 200
    payload = hashlib.sha256(b"other").hexdigest()
    cases = {
        "AccessDenied": lambda headers: headers.update({"x-amz-meta-added": "1"}),
        "SignatureDoesNotMatch": lambda headers: headers.update({"X-Amz-Content-SHA256": payload}),
        "InvalidRequest": lambda headers: headers.pop("X-Amz-Content-SHA256"),
        "AuthorizationHeaderMalformed": lambda headers: headers.update({"Authorization": headers["Authorization"].replace("us-east-1", "moon")}),
    }
    for code, change in cases.items():
        status, text, _ = signed(it, "PUT", "/bucket/tampered", b"data", change)
        assert f"<Code>{code}</Code>" in text, (code, status, text)
    status, text, _ = raw(it, "PUT", "/bucket/tampered", signed_headers(it, "PUT", "/bucket/tampered", b"data"), b"DATA")
    assert status == 400 and "XAmzContentSHA256Mismatch" in text, text
    status, text, _ = signed(it, "GET", "/bucket?versions")
    assert status == 501 and "NotImplemented" in text, text

    it.tell("credentials AKIDSECOND second-secret the-token")
    refused("InvalidAccessKeyId", 403, ask(), Bucket="bucket")
    refused("InvalidToken", 400, ask(access="AKIDSECOND", secret="second-secret"), Bucket="bucket")
    ask(access="AKIDSECOND", secret="second-secret", token="the-token")(Bucket="bucket")
    it.tell("expire")
    refused("ExpiredToken", 400, ask(access="AKIDSECOND", secret="second-secret", token="the-token"), Bucket="bucket")
    it.tell(f"credentials {ACCESS} {SECRET}")


def check_faults(it):
    s3 = it.client()
    put = {"Bucket": "bucket", "Key": "faulty", "Body": b"0123456789" * 100}
    get = {"Bucket": "bucket", "Key": "faulty"}

    def script(*rules):
        it.tell("clear-faults")
        for rule in rules:
            it.tell("fault " + rule)

    script("error PutObject 2 status=503 code=SlowDown retry_after=7")
    s3.put_object(**put)
    answer = refused("SlowDown", 503, s3.put_object, **put)
    assert answer["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"
    s3.put_object(**put)
    script("error * every:2 status=500")
    assert it.client(retries=1).head_object(**get)["ContentLength"] == 1000
    for kind in ("reset_before", "reset_in_body after=10", "reset_after"):
        it.tell("clear")
        name, *more = kind.split()
        script(" ".join([name, "PutObject all", *more]))
        breaks(s3.put_object, **put)
        assert it.tell("keys") == [], kind
    script("lost_reply PutObject first")
    breaks(s3.put_object, **put)
    assert it.tell("keys") == ["faulty"]
    script("reset_in_reply GetObject first")
    try:
        s3.get_object(**get)["Body"].read()
        raise AssertionError("a cut answer was whole")
    except botocore.exceptions.BotoCoreError:
        pass
    script("reset_in_reply DeleteObject all")
    breaks(s3.delete_object, **get)
    assert it.tell("keys") == []
    s3.put_object(**put)
    script("hang_up GetObject first")
    again = it.client(retries=1)
    for _ in range(2):  # the second finds a dead connection
        assert len(again.get_object(**get)["Body"].read()) == 1000
    script("short_range GetObject 1", "wrong_range GetObject 2 by=5", "whole_object GetObject 3", "flip GetObject 4",
           "wrong_etag GetObject 5", "changed GetObject 6")
    ask = {**get, "Range": "bytes=100-199"}
    got = s3.get_object(**ask)
    etag = got["ETag"]
    assert got["ContentRange"] == "bytes 100-149/1000" and len(got["Body"].read()) == 50
    assert s3.get_object(**ask)["ContentRange"] == "bytes 105-204/1000"
    got = s3.get_object(**ask)
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 200 and len(got["Body"].read()) == 1000
    assert s3.get_object(**ask)["Body"].read() != put["Body"][100:200]
    assert s3.get_object(**ask)["ETag"] != etag
    refused("PreconditionFailed", 412, s3.get_object, **ask, IfMatch=etag)
    script("redirect GetObject 1 region=eu-west-1", "garbage ListObjectsV2 1 body=html", "garbage ListObjectsV2 2 body=cut",
           "not_done DeleteObject 1", "delay HeadObject 1 ms=300")
    status, text, answer = signed(it, "GET", "/bucket/faulty")
    assert status == 301 and answer.getheader("x-amz-bucket-region") == "eu-west-1" and "PermanentRedirect" in text
    breaks(s3.list_objects_v2, Bucket="bucket")
    breaks(s3.list_objects_v2, Bucket="bucket")
    s3.delete_object(**get)
    assert it.tell("keys") == ["faulty"]
    begin = time.monotonic()
    s3.head_object(**get)
    assert time.monotonic() - begin > 0.29
    script("slow GetObject 1 rate=4000", "stall GetObject 2 ms=200")
    begin = time.monotonic()
    s3.get_object(**get)["Body"].read()
    assert time.monotonic() - begin > 0.2
    breaks(s3.get_object, **get)

    # An error, or the result, after spaces under a status that promised success.
    def upload():
        begun = {"Bucket": "bucket", "Key": "spaced", "UploadId": s3.create_multipart_upload(Bucket="bucket", Key="spaced")["UploadId"]}
        tag = s3.upload_part(**begun, PartNumber=1, Body=b"data")["ETag"]
        return {**begun, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": tag}]}}

    script("whitespace CompleteMultipartUpload 1 then=error ms=30", "whitespace CompleteMultipartUpload 2 ms=30",
           "error_in_200 CompleteMultipartUpload 3", "error_in_200 CompleteMultipartUpload 4 done=1",
           "whitespace CompleteMultipartUpload 5 then=cut", "empty CompleteMultipartUpload 6")
    one = upload()
    refused("InternalError", 500, s3.complete_multipart_upload, **one)  # botocore makes a 500 of it
    assert "spaced" not in it.tell("keys")
    assert s3.complete_multipart_upload(**one)["ETag"].endswith('-1"')
    one = upload()
    s3.delete_object(Bucket="bucket", Key="spaced")
    refused("InternalError", 500, s3.complete_multipart_upload, **one)
    assert "spaced" not in it.tell("keys")
    refused("InternalError", 500, s3.complete_multipart_upload, **one)
    assert "spaced" in it.tell("keys")
    one = upload()
    breaks(s3.complete_multipart_upload, **one)
    script("header HeadObject 1 text=no-colon-here", "header HeadObject 2 text=Content-Length:~-1")
    for _ in range(2):
        raw = socket.create_connection(("127.0.0.1", it.port))
        raw.sendall(b"HEAD /bucket/faulty HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        text = b""
        while piece := raw.recv(4096):
            text += piece
        assert b"no-colon-here\r\n" in text or b"Content-Length: -1\r\n" in text, text
    script()
    for rule in ("nonsense * all", "error", "error * never", "error * all status"):
        it.process.stdin.write(f"fault {rule}\n")
        it.process.stdin.flush()
        assert it.process.stdout.readline().startswith("error: ") and it.process.stdout.readline() == ".\n"
    it.tell("clear-journal")
    it.process.stdin.write("random 100 7\nerror * all status=503 code=SlowDown\n.\n")
    it.process.stdin.flush()
    assert it.process.stdout.readline() == ".\n"
    refused("SlowDown", 503, s3.list_objects_v2, Bucket="bucket")
    script()
    s3.list_objects_v2(Bucket="bucket")
    journal = [line.split("\t") for line in it.tell("journal")]
    assert [(entry[0], entry[4], entry[6]) for entry in journal] == [("ListObjectsV2", "503", "error"), ("ListObjectsV2", "200", "")], journal


def check_speed():
    """A latency of 100 ms and 2 MB/s for each connection: each is at least that."""
    with server("--latency-ms=100", "--bandwidth=2000000", "--opaque-etags") as it:
        s3 = it.client()
        begin = time.monotonic()
        etag = s3.put_object(Bucket="bucket", Key="big", Body=bytes(600000))["ETag"]
        assert time.monotonic() - begin >= 0.39, time.monotonic() - begin
        assert "opaque" in etag
        begin = time.monotonic()
        s3.get_object(Bucket="bucket", Key="big")["Body"].read()
        assert time.monotonic() - begin >= 0.25, time.monotonic() - begin


with server() as the_server:
    for check in (check_objects, check_ranges, check_conditions, check_checksums, check_multipart, check_signatures, check_faults):
        the_server.tell("clear")
        check(the_server)
check_speed()
print("the server keeps what botocore expects of S3")
