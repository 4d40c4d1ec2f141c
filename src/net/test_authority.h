// SPDX-License-Identifier: Apache-2.0
// Certificates for tests.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "net/tls.h"

namespace cistern::net {

// A directory with an authority that signs certificates, as an operator's would.
class TestAuthority {
 public:
  explicit TestAuthority(const std::filesystem::path& directory) : directory_(directory) {
    std::filesystem::create_directories(directory);
    key_ = EVP_EC_gen("P-256");
    certificate_ = Sign("authority", key_);
    Write("authority.pem", [&](FILE* file) { PEM_write_X509(file, certificate_); });
  }
  ~TestAuthority() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  static constexpr long kValidS = 3600;

  TlsCertificates Issue(const std::string& name) { return Issue(name, EVP_EC_gen("P-256")); }
  // One that was valid until just now.
  TlsCertificates IssueEnded(const std::string& name) {
    ends_in_s_ = -1;
    TlsCertificates files = Issue(name);
    ends_in_s_ = kValidS;
    return files;
  }
  // Takes the key. With a passphrase the file is encrypted.
  TlsCertificates Issue(const std::string& name, EVP_PKEY* key, const char* passphrase = nullptr) {
    X509* certificate = Sign(name, key);
    Write(name + ".pem", [&](FILE* file) { PEM_write_X509(file, certificate); });
    Write(name + ".key", [&](FILE* file) {
      const auto* word = reinterpret_cast<const unsigned char*>(passphrase);
      PEM_write_PrivateKey(file, key, word != nullptr ? EVP_aes_128_cbc() : nullptr, word,
                           word != nullptr ? static_cast<int>(std::strlen(passphrase)) : 0, nullptr, nullptr);
    });
    X509_free(certificate);
    EVP_PKEY_free(key);
    return {directory_ / "authority.pem", directory_ / (name + ".pem"), directory_ / (name + ".key")};
  }

 private:
  X509* Sign(const std::string& name, EVP_PKEY* key) {
    X509* made = X509_new();
    X509_set_version(made, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(made), -kValidS);
    X509_gmtime_adj(X509_getm_notAfter(made), ends_in_s_);
    X509_set_pubkey(made, key);
    X509_NAME* subject = X509_get_subject_name(made);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(made, certificate_ != nullptr ? X509_get_subject_name(certificate_) : subject);
    if (certificate_ == nullptr) {
      X509_EXTENSION* extension =
          X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
      X509_add_ext(made, extension, -1);
      X509_EXTENSION_free(extension);
    }
    X509_sign(made, key_, EVP_sha256());
    return made;
  }
  template <class WriteTo>
  void Write(const std::string& name, WriteTo&& write_to) {
    FILE* file = std::fopen((directory_ / name).c_str(), "w");
    write_to(file);
    std::fclose(file);
  }

  std::filesystem::path directory_;
  EVP_PKEY* key_ = nullptr;
  X509* certificate_ = nullptr;
  long serial_ = 0;
  long ends_in_s_ = kValidS;
};

}  // namespace cistern::net
