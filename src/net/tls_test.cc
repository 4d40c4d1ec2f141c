// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/codec.h"
#include "base/random_bytes.h"
#include "net/sealed_stream.h"
#include "net/test_authority.h"
#include "net/test_pair.h"

namespace cistern::net {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

CellKey Key(std::uint64_t seed) {
  CellKey key;
  FillRandom(seed, key.bytes);
  return key;
}

TlsContext OfKeys(std::vector<CellKey> keys) { return std::move(*TlsContext::OfCellKeys(keys)); }

class TlsTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(directory_); }

  // Both ends' outcomes.
  void Shake(const TlsContext& client, const TlsContext& server) {
    auto answering = TlsStream::Handshake(pair_.executor(), server, TlsRole::kServer, std::move(pair_.far),
                                          pair_.After(5'000'000));
    client_ = pair_.loop->BlockOn(TlsStream::Handshake(pair_.executor(), client, TlsRole::kClient,
                                                       std::move(pair_.near), pair_.After(5'000'000)));
    // A client learns of its refusal with the first message behind its own last one.
    if (client_) {
      std::byte byte{};
      const Piece piece(&byte, 1);
      first_ = pair_.loop->BlockOn((*client_)->Receive({&piece, 1}, pair_.After(1'000'000)));
    }
    server_ = pair_.loop->BlockOn(std::move(answering));
  }
  bool Agreed() const { return client_.has_value() && server_.has_value(); }

  fs::path directory_ = fs::path(::testing::TempDir()) / ("cistern-tls-" + std::to_string(::getpid()));
  TestPair pair_;
  Result<std::unique_ptr<TlsStream>> client_, server_;
  Result<std::size_t> first_;
};

TEST_F(TlsTest, MembersWithOneKeyTalkBothWays) {
  const TlsContext context = OfKeys({Key(1)});
  Shake(context, context);
  ASSERT_TRUE(Agreed()) << (client_ ? "" : client_.error().ToString())
                        << (server_ ? "" : server_.error().ToString());
  std::vector<std::byte> bytes(300'000), got(bytes.size());
  FillRandom(3, bytes);
  for (const auto& [from, to] : {std::pair(&**client_, &**server_), std::pair(&**server_, &**client_)}) {
    auto sent = SendAll(pair_.executor(), *from, bytes, pair_.After(1'000'000));
    EXPECT_EQ(pair_.loop->BlockOn(ReceiveAll(pair_.executor(), *to, got, pair_.After(1'000'000))).ToString(),
              "ok");
    EXPECT_TRUE(pair_.loop->BlockOn(std::move(sent)).ok());
    EXPECT_TRUE(got == bytes);
  }
  std::array<std::byte, 16> a{}, b{}, other{};
  EXPECT_TRUE((*client_)->Export("label", a).ok());
  EXPECT_TRUE((*server_)->Export("label", b).ok());
  EXPECT_TRUE((*server_)->Export("other", other).ok());
  EXPECT_EQ(a, b);
  EXPECT_NE(a, other);
  // A close is an end, not a cut.
  client_->reset();
  const Piece piece(got);
  EXPECT_EQ(*pair_.loop->BlockOn((*server_)->Receive({&piece, 1}, pair_.After(1'000'000))), 0u);
}

TEST_F(TlsTest, AnotherKeyIsRefusedOnBothSides) {
  Shake(OfKeys({Key(1)}), OfKeys({Key(2)}));
  ASSERT_FALSE(server_.has_value());
  EXPECT_EQ(server_.error().code(), Code::kDenied);
  EXPECT_THAT(std::string(server_.error().message()), HasSubstr("give both the same cell key"));
  EXPECT_FALSE(client_.has_value() && first_.has_value());
}

TEST_F(TlsTest, DuringARotationEitherKeyIsAccepted) {
  const TlsContext before = OfKeys({Key(1)}), between = OfKeys({Key(1), Key(2)}),
                   after = OfKeys({Key(2), Key(1)});
  Shake(before, between);
  EXPECT_TRUE(Agreed());
  pair_.Connect();
  Shake(after, between);
  EXPECT_TRUE(Agreed());
  pair_.Connect();
  Shake(after, before);
  EXPECT_FALSE(server_.has_value());
}

TEST_F(TlsTest, CertificatesOfOneAuthorityDoAndOthersDoNot) {
  TestAuthority ours(directory_ / "ours"), theirs(directory_ / "theirs");
  const auto of = [](const TlsCertificates& files) { return std::move(*TlsContext::OfCertificates(files)); };
  const TlsContext a = of(ours.Issue("a")), b = of(ours.Issue("b")), stranger = of(theirs.Issue("c"));
  Shake(a, b);
  EXPECT_TRUE(Agreed()) << (client_ ? "" : client_.error().ToString())
                        << (server_ ? "" : server_.error().ToString());
  pair_.Connect();
  Shake(stranger, b);
  EXPECT_FALSE(server_.has_value());
  ASSERT_FALSE(client_.has_value());
  EXPECT_THAT(std::string(client_.error().message()), HasSubstr("certificate signature failure"));
  pair_.Connect();
  Shake(a, stranger);
  EXPECT_FALSE(client_.has_value());
  pair_.Connect();
  Shake(a, OfKeys({Key(1)}));
  EXPECT_FALSE(Agreed()) << "a key and a certificate";
}

TEST_F(TlsTest, AWrongFileIsNamed) {
  TestAuthority authority(directory_);
  TlsCertificates files = authority.Issue("a");
  const std::string other = authority.Issue("b").private_key;
  files.private_key = other;
  auto context = TlsContext::OfCertificates(files);
  ASSERT_FALSE(context.has_value());
  EXPECT_THAT(std::string(context.error().message()), HasSubstr("b.key"));
  files.certificate = directory_ / "none.pem";
  context = TlsContext::OfCertificates(files);
  ASSERT_FALSE(context.has_value());
  EXPECT_THAT(std::string(context.error().message()), HasSubstr("none.pem: No such file or directory"));
}

TEST_F(TlsTest, CertificateThatNoMemberAcceptsIsRefused) {
  TestAuthority ours(directory_ / "ours"), theirs(directory_ / "theirs");
  const TlsCertificates ended = ours.IssueEnded("ended");
  TlsCertificates other = theirs.Issue("other");
  other.authority = ours.Issue("a").authority;
  for (const auto& [files, why] :
       {std::pair(ended, "certificate has expired"), std::pair(other, "certificate signature failure")}) {
    const auto context = TlsContext::OfCertificates(files);
    ASSERT_FALSE(context.has_value());
    EXPECT_EQ(context.error().code(), Code::kInvalid);
    EXPECT_THAT(std::string(context.error().message()), HasSubstr(files.certificate + ": " + why));
  }
}

TEST_F(TlsTest, ItIsSaidWhenTheFirstCertificateEnds) {
  const std::int64_t now = ::time(nullptr);
  TestAuthority authority(directory_);
  const TlsContext context = std::move(*TlsContext::OfCertificates(authority.Issue("a")));
  EXPECT_GE(context.ends_at(), now + TestAuthority::kValidS);
  EXPECT_LE(context.ends_at(), ::time(nullptr) + TestAuthority::kValidS);
  EXPECT_EQ(OfKeys({Key(1)}).ends_at(), 0);
}

TEST_F(TlsTest, EncryptedKeyIsRefused) {
  const TlsCertificates files = TestAuthority(directory_).Issue("shut", EVP_EC_gen("P-256"), "word");
  const auto context = TlsContext::OfCertificates(files);
  ASSERT_FALSE(context.has_value());
  EXPECT_EQ(context.error().code(), Code::kInvalid);
  EXPECT_THAT(std::string(context.error().message()), HasSubstr(files.private_key));
}

TEST_F(TlsTest, KeyThatSignsSlowlyIsTakenAndSaid) {
  TestAuthority authority(directory_);
  const std::pair<EVP_PKEY*, bool> keys[] = {{EVP_EC_gen("P-256"), false},
                                             {EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), false},
                                             {EVP_EC_gen("P-384"), true},
                                             {EVP_PKEY_Q_keygen(nullptr, nullptr, "ED448"), true},
                                             {EVP_RSA_gen(2048), true}};
  const TlsContext other = std::move(*TlsContext::OfCertificates(authority.Issue("other")));
  for (const auto& [key, slow] : keys) {
    const std::string kind = EVP_PKEY_get0_type_name(key);
    const TlsContext context = std::move(*TlsContext::OfCertificates(authority.Issue("one", key)));
    EXPECT_EQ(context.signs_slowly(), slow) << kind;
    Shake(other, context);
    EXPECT_TRUE(Agreed()) << kind;
    pair_.Connect();
  }
  EXPECT_FALSE(OfKeys({Key(1)}).signs_slowly());
}

// A stranger's first message has the other side make a key of its group before anything is proved.
TEST_F(TlsTest, P5GroupsThatTakeLongAreRefusedWithTheFirstMessage) {
  const TlsContext server = std::move(*TlsContext::OfCertificates(TestAuthority(directory_).Issue("a")));
  const std::pair<const char*, Code> groups[] = {{"ffdhe8192", Code::kDenied}, {"ffdhe2048", Code::kDenied},
                                                 {"P-384", Code::kDenied},     {"P-521", Code::kDenied},
                                                 {"X448", Code::kDenied},      {"X25519", Code::kTooLate},
                                                 {"P-256", Code::kTooLate}};
  for (const auto& [group, code] : groups) {
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> made(SSL_CTX_new(TLS_client_method()),
                                                                 &SSL_CTX_free);
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(made.get()), &SSL_free);
    BIO* const out = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), out);
    ASSERT_EQ(SSL_set1_groups_list(ssl.get(), group), 1);
    EXPECT_EQ(SSL_connect(ssl.get()), -1);
    std::vector<std::byte> hello(static_cast<std::size_t>(BIO_pending(out)));
    ASSERT_GT(BIO_read(out, hello.data(), static_cast<int>(hello.size())), 0);
    auto answering = TlsStream::Handshake(pair_.executor(), server, TlsRole::kServer, std::move(pair_.far),
                                          pair_.After(1'000'000));
    EXPECT_TRUE(
        pair_.loop->BlockOn(SendAll(pair_.executor(), *pair_.near, hello, pair_.After(1'000'000))).ok());
    server_ = pair_.loop->BlockOn(std::move(answering));
    ASSERT_FALSE(server_.has_value());
    EXPECT_EQ(server_.error().code(), code) << group << ": " << server_.error().message();
    pair_.Connect();
  }
}

TEST_F(TlsTest, APeerThatSaysNothingIsTooLate) {
  const TlsContext context = OfKeys({Key(1)});
  client_ = pair_.loop->BlockOn(TlsStream::Handshake(pair_.executor(), context, TlsRole::kClient,
                                                     std::move(pair_.near), pair_.After(2'000'000)));
  ASSERT_FALSE(client_.has_value());
  EXPECT_EQ(client_.error().code(), Code::kTooLate);
}

TEST_F(TlsTest, NoiseInsteadOfAHandshakeIsRefused) {
  const TlsContext context = OfKeys({Key(1)});
  std::vector<std::byte> noise(4096);
  FillRandom(9, noise);
  ASSERT_TRUE(
      pair_.loop->BlockOn(SendAll(pair_.executor(), *pair_.near, noise, pair_.After(1'000'000))).ok());
  server_ = pair_.loop->BlockOn(TlsStream::Handshake(pair_.executor(), context, TlsRole::kServer,
                                                     std::move(pair_.far), pair_.After(2'000'000)));
  ASSERT_FALSE(server_.has_value());
  EXPECT_EQ(server_.error().code(), Code::kDenied);
}

// OpenSSL would take 128 KiB of a greeting that says it is so long.
TEST_F(TlsTest, P5AGreetingWithoutAnEndIsRefusedAtItsLimit) {
  const TlsContext context = OfKeys({Key(1)});
  constexpr std::size_t kRecords = 2, kRecord = 12'000, kGreeting = 131'000;
  std::vector<std::byte> greeting;
  Encoder out(greeting);
  const auto big_endian = [&](std::size_t value, int bytes) {
    while (bytes-- > 0) out.U8(static_cast<std::uint8_t>(value >> (8 * bytes)));
  };
  for (std::size_t record = 0; record < kRecords; ++record) {
    big_endian(0x160301, 3);  // of a handshake
    big_endian(kRecord, 2);
    const std::size_t begin = greeting.size();
    if (record == 0) {
      big_endian(0x01, 1);  // a client's greeting
      big_endian(kGreeting, 3);
      big_endian(0x0303, 2);
    }
    greeting.resize(begin + kRecord);
  }
  ASSERT_TRUE(
      pair_.loop->BlockOn(SendAll(pair_.executor(), *pair_.near, greeting, pair_.After(1'000'000))).ok());
  server_ = pair_.loop->BlockOn(TlsStream::Handshake(pair_.executor(), context, TlsRole::kServer,
                                                     std::move(pair_.far), pair_.After(2'000'000)));
  ASSERT_FALSE(server_.has_value());
  EXPECT_EQ(server_.error().code(), Code::kDenied) << server_.error().message();
  EXPECT_THAT(std::string(server_.error().message()), HasSubstr("has sent 16384 bytes"));
}

TEST_F(TlsTest, AKeyIsReadFromAFileOfItsOwnersAlone) {
  fs::create_directories(directory_);
  const std::string path = directory_ / "key";
  const auto reading = [&](const std::string& text, fs::perms perms = fs::perms(0600)) {
    std::ofstream(path, std::ios::trunc) << text;
    fs::permissions(path, perms);
    Result<CellKey> key = ReadCellKey(path);
    return key ? std::string("ok ") + std::to_string(std::to_integer<int>(key->bytes[31]))
               : key.error().ToString();
  };
  const std::string good = std::string(62, '0') + "fF";
  EXPECT_EQ(reading(good), "ok 255");
  EXPECT_EQ(reading(good + "\n"), "ok 255");
  EXPECT_THAT(reading(good, fs::perms(0640)), HasSubstr("chmod 600"));
  EXPECT_THAT(reading(good.substr(1)), HasSubstr("has 63 characters"));
  EXPECT_THAT(reading(good + "00\n"), HasSubstr("has more than"));
  EXPECT_THAT(reading("x" + good.substr(1)), HasSubstr("hexadecimal at character 1"));
  fs::remove(path);
  EXPECT_EQ(ReadCellKey(path).error().code(), Code::kInvalid);
}

// ---- sealed chunks

class SealedStreamTest : public ::testing::Test {
 protected:
  static SealedKeys Keys(bool client) {
    SealedKeys keys;
    FillRandom(1, client ? std::span(keys.send) : std::span(keys.receive));
    FillRandom(2, client ? std::span(keys.receive) : std::span(keys.send));
    return keys;
  }
  // What a sender of these bytes puts on the wire.
  std::vector<std::byte> Sealed(std::span<const std::vector<std::byte>> sends) {
    TestPair pair;
    std::size_t bytes = 0;
    SealedStream sealed(std::move(pair.near), Keys(true));
    for (const std::vector<std::byte>& send : sends) {
      EXPECT_TRUE(pair.loop->BlockOn(SendAll(pair.executor(), sealed, send, pair.After(1'000'000))).ok());
      bytes += send.size() + (send.size() + kSealedChunkBytes - 1) / kSealedChunkBytes * 20;
    }
    std::vector<std::byte> wire(bytes);
    EXPECT_TRUE(pair.loop->BlockOn(ReceiveAll(pair.executor(), *pair.far, wire, pair.After(1'000'000))).ok());
    return wire;
  }
  // What a receiver makes of it.
  Status Receive(const std::vector<std::byte>& wire, std::span<std::byte> into) {
    TestPair pair;
    SealedStream opened(std::move(pair.far), Keys(false));
    auto sent = SendAll(pair.executor(), *pair.near, wire, pair.After(1'000'000));
    Status status = pair.loop->BlockOn(ReceiveAll(pair.executor(), opened, into, pair.After(1'000'000)));
    opened.Close();
    (void)pair.loop->BlockOn(std::move(sent));
    return status;
  }
};

TEST_F(SealedStreamTest, BytesArriveThroughPiecesOfAnySize) {
  TestPair pair;
  SealedStream near(std::move(pair.near), Keys(true)), far(std::move(pair.far), Keys(false));
  std::vector<std::byte> bytes(1'000'003), got(bytes.size());
  FillRandom(5, bytes);
  std::vector<ConstPiece> out;
  for (std::size_t at = 0, size = 1; at < bytes.size(); at += size, size = size * 3 + 1) {
    size = std::min(size, bytes.size() - at);
    out.emplace_back(std::span(bytes).subspan(at, size));
  }
  auto sent = near.Send(out, pair.After(1'000'000));
  Random random(6);
  for (std::size_t had = 0; had < got.size();) {
    const std::size_t a = std::min<std::size_t>(random.Below(100'000), got.size() - had);
    const std::size_t b = std::min<std::size_t>(1 + random.Below(3), got.size() - had - a);
    const std::array<Piece, 2> into = {std::span(got).subspan(had, a), std::span(got).subspan(had + a, b)};
    if (a + b == 0) continue;
    auto moved = pair.loop->BlockOn(far.Receive(into, pair.After(1'000'000)));
    ASSERT_TRUE(moved.has_value() && *moved > 0);
    had += *moved;
  }
  EXPECT_TRUE(pair.loop->BlockOn(std::move(sent)).ok());
  EXPECT_TRUE(got == bytes);
}

TEST_F(SealedStreamTest, AnyChangedByteEndsTheStreamBeforeItIsBelieved) {
  std::vector<std::byte> bytes(200);
  FillRandom(7, bytes);
  const std::vector<std::byte> wire = Sealed({{bytes}});
  std::vector<std::byte> got(bytes.size());
  ASSERT_TRUE(Receive(wire, got).ok());
  ASSERT_TRUE(got == bytes);
  for (std::size_t at = 0; at < wire.size(); ++at) {
    std::vector<std::byte> changed = wire;
    changed[at] ^= std::byte{1};
    // A length that became longer waits for bytes that never come.
    const Status status = Receive(changed, got);
    EXPECT_TRUE(status.code() == Code::kGone || (at < 4 && status.code() == Code::kTooLate)) << at;
  }
}

TEST_F(SealedStreamTest, ChunksLeftOutRepeatedOrExchangedEndTheStream) {
  std::vector<std::byte> bytes(100);
  FillRandom(8, bytes);
  const std::vector<std::byte> wire = Sealed(std::vector{bytes, bytes, bytes});
  const std::size_t chunk = bytes.size() + 20;
  const auto chunks = [&](std::initializer_list<std::size_t> order) {
    std::vector<std::byte> out;
    for (const std::size_t which : order) {
      out.insert(out.end(), wire.begin() + static_cast<std::ptrdiff_t>(which * chunk),
                 wire.begin() + static_cast<std::ptrdiff_t>((which + 1) * chunk));
    }
    return out;
  };
  std::vector<std::byte> got(300);
  EXPECT_TRUE(Receive(chunks({0, 1, 2}), got).ok());
  EXPECT_EQ(Receive(chunks({0, 2, 1}), got).code(), Code::kGone);
  EXPECT_EQ(Receive(chunks({0, 0, 1}), got).code(), Code::kGone);
  EXPECT_EQ(Receive(chunks({1, 2, 0}), got).code(), Code::kGone);
}

TEST_F(SealedStreamTest, NothingIsReceivedBehindAChunkThatWasChanged) {
  std::vector<std::byte> bytes(100), got(100);
  FillRandom(10, bytes);
  const std::vector<std::byte> wire = Sealed(std::vector{bytes, bytes, bytes});
  const std::size_t chunk = bytes.size() + 20;
  // Its length, beyond what any has, and its bytes; received at once, and in pieces of what it was opened to.
  for (const std::size_t at : {chunk + 3, chunk + 50}) {
    for (const std::size_t size : {bytes.size(), std::size_t{20}}) {
      SCOPED_TRACE(testing::Message() << "byte " << at << ", " << size << " at once");
      TestPair pair;
      SealedStream opened(std::move(pair.far), Keys(false));
      std::vector<std::byte> changed = wire;
      changed[at] ^= std::byte{0x80};
      const ConstPiece all(changed);
      ASSERT_TRUE(pair.loop->BlockOn(pair.near->Send({&all, 1}, pair.After(1'000'000))).ok());
      std::size_t had = 0;
      for (int errors = 0; errors < 4;) {
        const Piece into = std::span(got).first(size);
        const auto received = pair.loop->BlockOn(opened.Receive({&into, 1}, pair.After(1'000'000)));
        if (received) {
          ASSERT_EQ(errors, 0) << "bytes behind an error";
          ASSERT_LE(had += *received, bytes.size());
        } else {
          EXPECT_EQ(received.error().code(), Code::kGone);
          ++errors;
        }
      }
    }
  }
}

// Whoever cuts the connection takes what was under way, and does not make less of it.
TEST_F(SealedStreamTest, AnEndWithinAChunkIsNoEnd) {
  std::vector<std::byte> bytes(40);
  FillRandom(11, bytes);
  const std::vector<std::byte> wire = Sealed(std::vector{bytes, bytes});
  const std::size_t chunk = bytes.size() + 20;
  for (std::size_t cut = 0; cut <= wire.size(); ++cut) {
    SCOPED_TRACE(cut);
    TestPair pair;
    SealedStream opened(std::move(pair.far), Keys(false));
    const ConstPiece part = std::span(wire).first(cut);
    ASSERT_TRUE(pair.loop->BlockOn(pair.near->Send({&part, 1}, pair.After(1'000'000))).ok());
    pair.near->Close();
    std::vector<std::byte> got(2 * bytes.size());
    std::size_t had = 0;
    Result<std::size_t> last = std::size_t{0};
    do {
      const Piece into = std::span(got).subspan(had);
      last = pair.loop->BlockOn(opened.Receive({&into, 1}, pair.After(1'000'000)));
      had += last.value_or(0);
    } while (last.value_or(0) > 0 && had < got.size());
    EXPECT_EQ(had, cut / chunk * bytes.size());
    EXPECT_EQ(last.has_value(), cut % chunk == 0);
    if (!last) {
      EXPECT_EQ(last.error().code(), Code::kGone);
    }
  }
}

TEST_F(SealedStreamTest, AHandshakeLeadsToChunksThatBothEndsOpen) {
  TestPair pair;
  const TlsContext context = OfKeys({Key(4)});
  auto answering =
      SealStream(pair.executor(), context, TlsRole::kServer, std::move(pair.far), pair.After(1'000'000));
  auto near = pair.loop->BlockOn(
      SealStream(pair.executor(), context, TlsRole::kClient, std::move(pair.near), pair.After(1'000'000)));
  ASSERT_TRUE(near.has_value()) << near.error().ToString();
  // Sent before the server has ended its handshake.
  std::vector<std::byte> bytes(100'000), got(bytes.size());
  FillRandom(9, bytes);
  auto sent = SendAll(pair.executor(), **near, bytes, pair.After(1'000'000));
  auto far = pair.loop->BlockOn(std::move(answering));
  ASSERT_TRUE(far.has_value()) << far.error().ToString();
  EXPECT_TRUE(pair.loop->BlockOn(ReceiveAll(pair.executor(), **far, got, pair.After(1'000'000))).ok());
  EXPECT_TRUE(pair.loop->BlockOn(std::move(sent)).ok());
  EXPECT_TRUE(got == bytes);
  auto back = SendAll(pair.executor(), **far, bytes, pair.After(1'000'000));
  EXPECT_TRUE(pair.loop->BlockOn(ReceiveAll(pair.executor(), **near, got, pair.After(1'000'000))).ok());
  EXPECT_TRUE(pair.loop->BlockOn(std::move(back)).ok());
}

}  // namespace
}  // namespace cistern::net
