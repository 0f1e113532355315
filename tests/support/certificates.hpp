// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

/// Certificates for tests of TLS, made by libcrypto.
namespace cairn_test {

struct free_by_openssl {
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(X509* p) const { X509_free(p); }
};
using key_pointer = std::unique_ptr<EVP_PKEY, free_by_openssl>;
using certificate_pointer = std::unique_ptr<X509, free_by_openssl>;

struct identity {
  key_pointer key;
  certificate_pointer certificate;

  /// Writes the certificate, without the key, as PEM.
  void write(const std::string& path) const {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    const bool fine = file != nullptr && PEM_write_X509(file, certificate.get()) == 1;
    if (file != nullptr) std::fclose(file);
    if (!fine) throw std::runtime_error("cannot write " + path);
  }
};

/// A certificate of `name` ("localhost" for a server), signed by `by`, or by itself where `by` is null, as
/// for an authority. It is valid from an hour ago for a day; where `expired`, it was valid until an hour ago.
inline identity make_identity(const std::string& name, const identity* by = nullptr, bool expired = false) {
  identity made;
  made.key.reset(EVP_EC_gen("P-256"));
  made.certificate.reset(X509_new());
  X509* const c = made.certificate.get();
  static long serial = 1;
  bool fine =
      made.key && c != nullptr && X509_set_version(c, 2) == 1 &&
      ASN1_INTEGER_set(X509_get_serialNumber(c), serial++) == 1 &&
      X509_gmtime_adj(X509_getm_notBefore(c), expired ? -7200 : -3600) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(c), expired ? -3600 : 86400) != nullptr &&
      X509_set_pubkey(c, made.key.get()) == 1 &&
      X509_NAME_add_entry_by_txt(X509_get_subject_name(c), "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0) == 1;
  X509* const issuer = by != nullptr ? by->certificate.get() : c;
  fine = fine && X509_set_issuer_name(c, X509_get_subject_name(issuer)) == 1;
  const auto extend = [&](int what, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, c, nullptr, nullptr, 0);
    X509_EXTENSION* const e = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
    fine = fine && e != nullptr && X509_add_ext(c, e, -1) == 1;
    X509_EXTENSION_free(e);
  };
  extend(NID_basic_constraints, by == nullptr ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (by != nullptr) extend(NID_subject_alt_name, "DNS:" + name);
  fine = fine && X509_sign(c, by != nullptr ? by->key.get() : made.key.get(), EVP_sha256()) > 0;
  if (!fine) throw std::runtime_error("OpenSSL made no certificate of " + name);
  return made;
}

}  // namespace cairn_test
