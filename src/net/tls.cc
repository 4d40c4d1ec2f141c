// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/fd.h"
#include "base/format.h"
#include "base/hex_digit.h"
#include "net/pieces.h"

namespace cistern::net {
namespace {

constexpr std::size_t kRecordBytes = 16u << 10;
// TLS records that one Send hands down together.
constexpr std::size_t kFlushBytes = 64u << 10;
constexpr unsigned char kCipherSuite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
// Whoever verifies peers must say what sessions are for, and a pre-shared key is one to OpenSSL.
constexpr unsigned char kPurpose[] = {'c', 'e', 'l', 'l'};
constexpr std::size_t kIdentityBytes = 16;
using Identity = std::array<unsigned char, kIdentityBytes>;

template <auto Free>
struct FreeBy {
  template <class T>
  void operator()(T* what) const {
    Free(what);
  }
};
using Ssl = std::unique_ptr<SSL, FreeBy<SSL_free>>;
using SslContext = std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>>;
using SslSession = std::unique_ptr<SSL_SESSION, FreeBy<SSL_SESSION_free>>;

// What OpenSSL last complained of on this thread; its queue is empty afterwards.
std::string TlsError() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

// Why a handshake failed: what is wrong with the other side's certificate, where that is it.
std::string Refusal(SSL* ssl) {
  const std::string error = TlsError();
  const long verified = SSL_get_verify_result(ssl);
  return verified == X509_V_OK ? error : X509_verify_cert_error_string(verified);
}

// Which key is meant, without a word of it: of its hash, so that a wrong key is known by its name.
Identity IdentityOf(const CellKey& key) {
  constexpr std::string_view kLabel = "cistern cell key";
  std::vector<unsigned char> input(kLabel.begin(), kLabel.end());
  for (const std::byte byte : key.bytes) input.push_back(std::to_integer<unsigned char>(byte));
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  CISTERN_ASSERT(EVP_Digest(input.data(), input.size(), hash.data(), nullptr, EVP_sha256(), nullptr) == 1);
  Identity identity;
  std::copy_n(hash.begin(), identity.size(), identity.begin());
  return identity;
}

// In tens of microseconds. RSA and OpenSSL's other curves take hundreds, and up to milliseconds.
bool IsQuick(const EVP_PKEY* key) {
  std::array<char, 64> curve{};
  return EVP_PKEY_is_a(key, "ED25519") == 1 ||
         (EVP_PKEY_get_group_name(key, curve.data(), curve.size(), nullptr) == 1 &&
          std::string_view(curve.data()) == "prime256v1");
}

}  // namespace

Result<CellKey> ReadCellKey(const std::string& path) {
  const auto wrong = [&](Code code, const std::string& why) {
    return Error(code, Text("cell key: ", path, " ", why));
  };
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return wrong(Code::kInvalid, Text("cannot be read: ", ErrnoText(errno)));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return wrong(Code::kIoError, Text("cannot be read: ", ErrnoText(errno)));
  if (S_ISDIR(info.st_mode)) return wrong(Code::kInvalid, "is a directory: name the file with the key");
  if ((info.st_mode & 077) != 0)
    return wrong(Code::kDenied, Text("may be read by others than its owner: `chmod 600 ", path, "`"));
  std::array<char, 2 * CellKey::kBytes + 2> text{};
  const ssize_t size = ::read(fd.get(), text.data(), text.size());
  if (size < 0) return wrong(Code::kIoError, Text("cannot be read: ", ErrnoText(errno)));
  std::string_view digits(text.data(), static_cast<std::size_t>(size));
  if (digits.ends_with('\n')) digits.remove_suffix(1);
  constexpr std::string_view kWayOut = "make one with `openssl rand -hex 32`";
  if (digits.size() != 2 * CellKey::kBytes) {
    return wrong(Code::kInvalid, Text("has ", digits.size() > 2 * CellKey::kBytes ? "more than " : "",
                                      digits.size(), " characters and a key has 64; ", kWayOut));
  }
  CellKey key;
  for (std::size_t i = 0; i < CellKey::kBytes; ++i) {
    const int high = HexDigit(digits[2 * i]), low = HexDigit(digits[2 * i + 1]);
    if (high < 0 || low < 0)
      return wrong(Code::kInvalid, Text("is not hexadecimal at character ", 2 * i + 1, "; ", kWayOut));
    key.bytes[i] = static_cast<std::byte>(high * 16 + low);
  }
  return key;
}

struct TlsContext::Inside {
  struct Named {
    Identity identity;
    CellKey key;
  };
  std::vector<Named> keys;  // empty: certificates
  bool signs_slowly = false;
  std::int64_t ends_at = 0;
  SslContext context;

  ~Inside() {
    for (Named& named : keys) OPENSSL_cleanse(named.key.bytes.data(), named.key.bytes.size());
  }

  static const Inside& Of(SSL* ssl) {
    return *static_cast<const Inside*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  }
  static SslSession SessionOf(SSL* ssl, const CellKey& key) {
    SslSession session(SSL_SESSION_new());
    const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherSuite);
    if (!session || cipher == nullptr ||
        SSL_SESSION_set1_master_key(session.get(), reinterpret_cast<const unsigned char*>(key.bytes.data()),
                                    key.bytes.size()) != 1 ||
        SSL_SESSION_set_cipher(session.get(), cipher) != 1 ||
        SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) != 1 ||
        SSL_SESSION_set1_id_context(session.get(), kPurpose, sizeof(kPurpose)) != 1) {
      return nullptr;
    }
    return session;
  }
  // A client offers the first key, where the handshake's hash is the key's.
  static int Offer(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, std::size_t* size,
                   SSL_SESSION** session) {
    *session = nullptr;
    *size = 0;
    if (hash != nullptr && !EVP_MD_is_a(hash, "SHA256")) return 1;
    const Named& first = Of(ssl).keys.front();
    *identity = first.identity.data();
    *size = first.identity.size();
    *session = SessionOf(ssl, first.key).release();
    return *session != nullptr ? 1 : 0;
  }
  // A server finds the key that is offered.
  static int Find(SSL* ssl, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
    *session = nullptr;
    for (const Named& named : Of(ssl).keys) {
      if (size != named.identity.size() || std::memcmp(identity, named.identity.data(), size) != 0) continue;
      *session = SessionOf(ssl, named.key).release();
      return *session != nullptr ? 1 : 0;
    }
    return 1;
  }
};

TlsContext::TlsContext(std::unique_ptr<Inside> inside) : inside_(std::move(inside)) {
  SSL_CTX_set_app_data(inside_->context.get(), inside_.get());
}
TlsContext::TlsContext(TlsContext&&) noexcept = default;
TlsContext& TlsContext::operator=(TlsContext&&) noexcept = default;
TlsContext::~TlsContext() = default;

bool TlsContext::signs_slowly() const { return inside_->signs_slowly; }
std::int64_t TlsContext::ends_at() const { return inside_->ends_at; }

namespace {

// A stranger's first message chooses among them, and has a key made of it: those of ffdhe8192 take 10 ms.
// OpenSSL of a host with FIPS may lack X25519.
bool LimitGroups(SSL_CTX* context) {
  return SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 ||
         SSL_CTX_set1_groups_list(context, "P-256") == 1;
}

// For both roles: 1.3 alone, one cipher suite, nothing that outlives a connection.
Result<SslContext> MakeContext() {
  SslContext context(SSL_CTX_new(TLS_method()));
  if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context.get(), 0) != 1 || !LimitGroups(context.get())) {
    return Error(Code::kIoError, Text("TLS 1.3 is not to be had of this OpenSSL: ", TlsError()));
  }
  SSL_CTX_set_session_id_context(context.get(), kPurpose, sizeof(kPurpose));
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  // Without a key of the cell nothing is accepted: there is no authority that could vouch for anybody.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

// As CheckTlsFiles.
Status Load(SSL_CTX* context, const TlsCertificates& files, const TlsCertificates& names) {
  const auto wrong = [](const std::string& name, const std::string& path) {
    const bool readable = ::access(path.c_str(), R_OK) == 0;
    const std::string why = readable ? TlsError() : ErrnoText(errno);
    return Status(Code::kInvalid,
                  Text(name, ": ", path, ": ", why, "; give a PEM file without a passphrase"));
  };
  ERR_clear_error();
  if (!files.authority.empty() &&
      SSL_CTX_load_verify_locations(context, files.authority.c_str(), nullptr) != 1)
    return wrong(names.authority, files.authority);
  if (files.certificate.empty() && files.private_key.empty()) return Status();
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1)
    return wrong(names.certificate, files.certificate);
  // Nobody is there who could be asked for a passphrase.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return -1; });
  if (SSL_CTX_use_PrivateKey_file(context, files.private_key.c_str(), SSL_FILETYPE_PEM) != 1)
    return wrong(names.private_key, files.private_key);
  if (SSL_CTX_check_private_key(context) != 1)
    return Status(Code::kInvalid,
                  Text(names.private_key, ": ", files.private_key, " is not that of ", files.certificate));
  return Status();
}

std::int64_t EndOf(const X509* certificate) {
  tm end{};
  CISTERN_ASSERT(ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) == 1);
  return ::timegm(&end);
}

// As TlsContext::ends_at. By a handshake of a member with itself, so that all is looked at that another one
// looks at.
Result<std::int64_t> ProveToItself(SSL_CTX* context) {
  const Ssl client(SSL_new(context)), server(SSL_new(context));
  BIO *near = nullptr, *far = nullptr;
  if (!client || !server || BIO_new_bio_pair(&near, 0, &far, 0) != 1)
    return Error(Code::kIoError, Text("no TLS connection can be made: ", TlsError()));
  SSL_set_bio(client.get(), near, near);
  SSL_set_bio(server.get(), far, far);
  SSL_set_connect_state(client.get());
  SSL_set_accept_state(server.get());
  for (int agreed = 0; agreed < 2;) {
    agreed = 0;
    for (SSL* const side : {client.get(), server.get()}) {
      ERR_clear_error();
      const int done = SSL_do_handshake(side);
      if (done == 1) {
        ++agreed;
      } else if (SSL_get_error(side, done) == SSL_ERROR_SSL) {
        return Error(Code::kInvalid, Refusal(side));
      }
    }
  }
  const STACK_OF(X509)* const chain = SSL_get0_verified_chain(client.get());
  std::int64_t end = EndOf(sk_X509_value(chain, 0));
  for (int i = 1; i < sk_X509_num(chain); ++i) end = std::min(end, EndOf(sk_X509_value(chain, i)));
  return end;
}

}  // namespace

Status CheckTlsFiles(const TlsCertificates& files, const TlsCertificates& names) {
  Result<SslContext> context = MakeContext();
  return context ? Load(context->get(), files, names) : context.error();
}

Result<TlsContext> TlsContext::OfCellKeys(std::span<const CellKey> keys) {
  if (keys.empty() || keys.size() > kMaxCellKeys)
    return Error(Code::kInvalid,
                 Text("cell keys: ", keys.size(), " are given; a cell has one, or two in a rotation"));
  Result<SslContext> context = MakeContext();
  if (!context) return Error(context.error());
  auto inside = std::make_unique<Inside>();
  for (const CellKey& key : keys) inside->keys.push_back({IdentityOf(key), key});
  SSL_CTX_set_psk_use_session_callback(context->get(), Inside::Offer);
  SSL_CTX_set_psk_find_session_callback(context->get(), Inside::Find);
  inside->context = std::move(*context);
  return TlsContext(std::move(inside));
}

Result<TlsContext> TlsContext::OfCertificates(const TlsCertificates& files) {
  Result<SslContext> context = MakeContext();
  if (!context) return Error(context.error());
  SSL_CTX* const tls = context->get();
  if (Status loaded = Load(tls, files, {"authority", "certificate", "private key"}); !loaded.ok())
    return Error(std::move(loaded));
  const Result<std::int64_t> ends_at = ProveToItself(tls);
  if (!ends_at)
    return Error(ends_at.error().code(),
                 Text("certificate: ", files.certificate, ": ", ends_at.error().message(), "; give one of ",
                      files.authority, " that is valid now"));
  auto inside = std::make_unique<Inside>();
  inside->ends_at = *ends_at;
  inside->signs_slowly = !IsQuick(SSL_CTX_get0_privatekey(tls));
  inside->context = std::move(*context);
  return TlsContext(std::move(inside));
}

struct TlsState {
  Ssl ssl;
  BIO* in = nullptr;   // the other side's bytes; the ssl's
  BIO* out = nullptr;  // bytes for the other side
  bool by_key = false;
  std::vector<std::byte> buffer = std::vector<std::byte>(kRecordBytes);

  static Result<std::unique_ptr<TlsState>> Make(const TlsContext& context, TlsRole role) {
    auto state = std::make_unique<TlsState>();
    state->by_key = !context.inside_->keys.empty();
    state->ssl.reset(SSL_new(context.inside_->context.get()));
    state->in = BIO_new(BIO_s_mem());
    state->out = BIO_new(BIO_s_mem());
    if (!state->ssl || state->in == nullptr || state->out == nullptr) {
      if (!state->ssl) {
        BIO_free(state->in);
        BIO_free(state->out);
      }
      return Error(Code::kIoError, Text("no TLS connection can be made: ", TlsError()));
    }
    // An empty store of bytes means that more will come, not that the connection ended.
    BIO_set_mem_eof_return(state->in, -1);
    SSL_set_bio(state->ssl.get(), state->in, state->out);
    if (role == TlsRole::kClient) {
      SSL_set_connect_state(state->ssl.get());
    } else {
      SSL_set_accept_state(state->ssl.get());
    }
    return state;
  }
};

TlsStream::TlsStream(std::unique_ptr<TlsState> state, std::unique_ptr<Stream> stream)
    : state_(std::move(state)), stream_(std::move(stream)), outbox_(*stream_) {}
TlsStream::~TlsStream() {
  if (stream_ != nullptr) Close();
}

// The other side is told that this is the end and no cut, if the network takes it at once.
void TlsStream::Close() {
  if (std::exchange(closed_, true)) return;
  if (!outbox_.flushing() && SSL_is_init_finished(state_->ssl.get()) == 1) {
    SSL_shutdown(state_->ssl.get());
    ERR_clear_error();
    (void)Flush(stream_->executor().Now());
  }
  stream_->Close();
}

Task<Status> TlsStream::Flush(Instant deadline) {
  std::vector<std::byte>& unsent = outbox_.unsent();
  if (const int pending = BIO_pending(state_->out); pending > 0) {
    const std::size_t at = unsent.size();
    unsent.resize(at + static_cast<std::size_t>(pending));
    BIO_read(state_->out, unsent.data() + at, pending);
  }
  return outbox_.Flush(deadline);
}

Task<Result<bool>> TlsStream::Fill(Instant deadline, std::size_t most) {
  const Piece into = Piece(state_->buffer).first(std::min(state_->buffer.size(), most));
  Result<std::size_t> bytes = co_await stream_->Receive({&into, 1}, deadline);
  if (!bytes) co_return Error(bytes.error());
  if (*bytes == 0) co_return false;
  CISTERN_ASSERT(BIO_write(state_->in, state_->buffer.data(), static_cast<int>(*bytes)) ==
                 static_cast<int>(*bytes));
  received_ += *bytes;
  co_return true;
}

Task<Status> TlsStream::Shake(Instant deadline) {
  SSL* const ssl = state_->ssl.get();
  for (;;) {
    ERR_clear_error();
    const int done = SSL_do_handshake(ssl);
    const int error = SSL_get_error(ssl, done);
    std::string why = done != 1 && error != SSL_ERROR_WANT_READ ? Refusal(ssl) : std::string();
    // Also where it failed: the other side is told why.
    Status sent = co_await Flush(deadline);
    if (done == 1 && sent.ok()) break;
    if (!why.empty()) {
      co_return Status(Code::kDenied,
                       Text(peer(), ": is not a member that this one accepts, or does not accept this one: ",
                            std::move(why),
                            state_->by_key ? "; give both the same cell key"
                                           : "; give both certificates of one authority that are valid now"));
    }
    if (!sent.ok()) co_return sent;
    if (received_ >= kHandshakeBytes) {
      co_return Status(Code::kDenied, Text(peer(), ": has sent ", received_,
                                           " bytes and not ended its handshake, which is the limit"));
    }
    Result<bool> more = co_await Fill(deadline, kHandshakeBytes - received_);
    if (!more) co_return more.error();
    if (!*more) co_return Status(Code::kGone, Text(peer(), ": closed the connection in its handshake"));
  }
  if (state_->by_key && SSL_session_reused(ssl) != 1)
    co_return Status(Code::kDenied, Text(peer(), ": has no key of this cell"));
  co_return Status();
}

Task<Result<std::unique_ptr<TlsStream>>> TlsStream::Handshake(Executor&, const TlsContext& context,
                                                              TlsRole role, std::unique_ptr<Stream> stream,
                                                              Instant deadline) {
  Result<std::unique_ptr<TlsState>> state = TlsState::Make(context, role);
  if (!state) co_return Error(state.error());
  std::unique_ptr<TlsStream> made(new TlsStream(std::move(*state), std::move(stream)));
  if (Status status = co_await made->Shake(deadline); !status.ok()) co_return Error(std::move(status));
  co_return made;
}

Task<Result<std::size_t>> TlsStream::Receive(std::span<const Piece> into, Instant deadline) {
  // What had come before is there, too.
  if (closed_) co_return Error(Code::kGone, Text(peer(), ": the connection was closed here"));
  PieceCursor<std::byte> cursor(into);
  std::size_t received = 0;
  for (;;) {
    ERR_clear_error();
    std::size_t bytes = 0;
    const Piece piece = cursor.next();
    if (SSL_read_ex(state_->ssl.get(), piece.data(), piece.size(), &bytes) == 1) {
      received += bytes;
      cursor.Advance(bytes);
      if (cursor.done()) co_return received;
      continue;
    }
    if (received > 0) co_return received;
    const int error = SSL_get_error(state_->ssl.get(), 0);
    if (error == SSL_ERROR_ZERO_RETURN) co_return std::size_t{0};
    if (error != SSL_ERROR_WANT_READ) {
      Close();
      co_return Error(Code::kGone, Text(peer(), ": sent what is not of this connection: ", TlsError()));
    }
    if (Status status = co_await Flush(deadline); !status.ok()) co_return Error(std::move(status));
    Result<bool> more = co_await Fill(deadline);
    if (!more) co_return Error(more.error());
    // Without TLS's own end somebody else may have cut the stream.
    if (!*more) {
      Close();
      co_return Error(Code::kGone, Text(peer(), ": the connection was cut"));
    }
  }
}

Task<Status> TlsStream::Send(std::span<const ConstPiece> pieces, Instant deadline) {
  for (PieceCursor<const std::byte> cursor(pieces); !cursor.done();) {
    std::size_t taken = 0;
    const ConstPiece piece = cursor.next().first(std::min(cursor.next().size(), kRecordBytes));
    ERR_clear_error();
    if (SSL_write_ex(state_->ssl.get(), piece.data(), piece.size(), &taken) != 1) {
      Close();
      co_return Status(Code::kGone, Text(peer(), ": cannot be written to: ", TlsError()));
    }
    cursor.Advance(taken);
    if (!cursor.done() && BIO_pending(state_->out) < static_cast<int>(kFlushBytes)) continue;
    if (Status status = co_await Flush(deadline); !status.ok()) co_return status;
  }
  co_return Status();
}

Status TlsStream::Export(std::string_view label, std::span<std::byte> into) const {
  if (SSL_export_keying_material(state_->ssl.get(), reinterpret_cast<unsigned char*>(into.data()),
                                 into.size(), label.data(), label.size(), nullptr, 0, 0) == 1) {
    return Status();
  }
  return Status(Code::kIoError, Text(peer(), ": no key can be derived: ", TlsError()));
}

std::unique_ptr<Stream> TlsStream::Detach(std::vector<std::byte>* received) {
  received->resize(static_cast<std::size_t>(BIO_pending(state_->in)));
  if (!received->empty()) BIO_read(state_->in, received->data(), static_cast<int>(received->size()));
  return std::move(stream_);
}

}  // namespace cistern::net
