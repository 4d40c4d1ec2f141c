// SPDX-License-Identifier: Apache-2.0
// An etcd that asks its clients for certificates, as operators set it up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "etcd/gateway.h"
#include "etcd/test_etcd.h"

namespace cistern::etcd {
namespace {

using ::testing::HasSubstr;

template <auto kFree>
struct Free {
  template <class T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using PrivateKey = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;

// An authority that signs certificates into a directory: NAME.pem and NAME.key.
class EtcdAuthority {
 public:
  explicit EtcdAuthority(const std::string& directory) : directory_(directory) {
    certificate_ = Sign("authority", key_.get(), NID_basic_constraints, "critical,CA:TRUE");
    Write("authority.pem", [&](FILE* file) { PEM_write_X509(file, certificate_.get()); });
  }
  void Issue(const std::string& name) {
    const PrivateKey key(EVP_EC_gen("P-256"));
    const Certificate certificate = Sign(name, key.get(), NID_subject_alt_name, "IP:127.0.0.1");
    Write(name + ".pem", [&](FILE* file) { PEM_write_X509(file, certificate.get()); });
    Write(name + ".key",
          [&](FILE* file) { PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
  }
  std::string file(const std::string& name) const { return directory_ + "/" + name; }

 private:
  Certificate Sign(const std::string& name, EVP_PKEY* key, int extension, const char* value) {
    Certificate made(X509_new());
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_set_pubkey(made.get(), key);
    X509_NAME* subject = X509_get_subject_name(made.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(made.get(), certificate_ ? X509_get_subject_name(certificate_.get()) : subject);
    const std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> extended(
        X509V3_EXT_conf_nid(nullptr, nullptr, extension, value));
    X509_add_ext(made.get(), extended.get(), -1);
    X509_sign(made.get(), key_.get(), EVP_sha256());
    return made;
  }
  template <class WriteTo>
  void Write(const std::string& name, WriteTo&& write_to) {
    FILE* out = std::fopen(file(name).c_str(), "w");
    ASSERT_NE(out, nullptr);
    write_to(out);
    std::fclose(out);
  }

  const std::string directory_;
  const PrivateKey key_{EVP_EC_gen("P-256")};
  Certificate certificate_;
  long serial_ = 0;
};

TEST(EtcdCertificates, WhoHasOneIsServedAndAStrangerIsNot) {
  if (!TestEtcd::Installed()) GTEST_SKIP() << "no etcd is installed";
  std::string directory = (std::filesystem::temp_directory_path() / "cistern-certificates-XXXXXX").string();
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  EtcdAuthority authority(directory);
  authority.Issue("server");
  authority.Issue("member");
  TestEtcd server({"--cert-file", authority.file("server.pem"), "--key-file", authority.file("server.key"),
                   "--trusted-ca-file", authority.file("authority.pem"), "--client-cert-auth"},
                  "https");
  ASSERT_EQ(server.Start().ToString(), "ok");
  const SystemClock clock;
  const auto loop = std::move(*io::MakeLoop(clock));
  const auto put = [&](GatewayOptions options) {
    options.endpoints = {server.endpoint()};
    const auto etcd = OpenGateway(*loop, std::move(options));
    if (!etcd) return etcd.error();
    Status status;
    do {
      const auto answer =
          loop->BlockOn((*etcd)->Commit({.then = {{.keys = {"k", ""}}}}, clock.Now().PlusUs(60'000'000)));
      status = answer ? Status() : answer.error();
      // On a loaded host a handshake may take longer than a connection has for it.
    } while (status.message().find("timeout") != std::string_view::npos);
    return status;
  };
  EXPECT_EQ(put({.authorities_file = authority.file("authority.pem"),
                 .certificate_file = authority.file("member.pem"),
                 .key_file = authority.file("member.key")})
                .ToString(),
            "ok");
  const Status stranger = put({.authorities_file = authority.file("authority.pem")});
  EXPECT_EQ(stranger.code(), Code::kGone) << stranger.ToString();
  EXPECT_THAT(std::string(stranger.message()), HasSubstr(server.endpoint()));
  const Status wrong_key = put({.authorities_file = authority.file("authority.pem"),
                                .certificate_file = authority.file("member.pem"),
                                .key_file = authority.file("server.key")});
  EXPECT_EQ(wrong_key.code(), Code::kGone) << wrong_key.ToString();
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace cistern::etcd
