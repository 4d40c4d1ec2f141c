// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 over a stream, by OpenSSL: who is at the other end holds the cell's key (RFC 8446, 2.2: a
// pre-shared key with an ephemeral Diffie-Hellman exchange, so recorded traffic stays closed when the key
// leaks later), or a certificate of the cell's authority. Both ends prove it. Older versions, key exchange by
// other groups than X25519 and P-256, tickets and early data are neither offered nor taken.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/outbox.h"
#include "net/stream.h"

namespace cistern::net {

// What makes a member of a cell: 32 random bytes.
struct CellKey {
  static constexpr std::size_t kBytes = 32;
  std::array<std::byte, kBytes> bytes{};
};

// Reads a file of 64 hexadecimal digits and perhaps the end of the line. kDenied: others than its owner may
// read it; kInvalid: it cannot be opened, is too short, too long, or not hexadecimal; kIoError.
Result<CellKey> ReadCellKey(const std::string& path);

// Paths of PEM files.
struct TlsCertificates {
  std::string authority;    // of all members
  std::string certificate;  // this member's, with what leads to the authority
  std::string private_key;  // without a passphrase
};

// Whether they can be used, each as what it is called here: an empty path is left out. kInvalid names the
// file.
Status CheckTlsFiles(const TlsCertificates& files, const TlsCertificates& names);

enum class TlsRole : std::uint8_t { kClient, kServer };

struct TlsState;  // OpenSSL's, in tls.cc

// What this member proves itself by, and what it accepts of others.
class TlsContext final {
 public:
  static constexpr std::size_t kMaxCellKeys = 2;

  // Offers the first key and accepts any of them: one key, or two while a cell goes from one to the other.
  static Result<TlsContext> OfCellKeys(std::span<const CellKey> keys);
  // kInvalid names the file that cannot be used, or says why members with the same authority do not accept
  // this one now.
  static Result<TlsContext> OfCertificates(const TlsCertificates& files);
  TlsContext(TlsContext&&) noexcept;
  TlsContext& operator=(TlsContext&&) noexcept;
  ~TlsContext();

  // The private key is neither of P-256 nor Ed25519: whoever connects, a stranger too, has it sign for
  // hundreds of microseconds or for milliseconds, on the thread of the handshake.
  bool signs_slowly() const;
  // When the first certificate ends that others accept it by, in Unix seconds; 0: it has keys.
  std::int64_t ends_at() const;

 private:
  friend class TlsStream;
  friend struct TlsState;
  struct Inside;
  explicit TlsContext(std::unique_ptr<Inside> inside);
  std::unique_ptr<Inside> inside_;
};

// A stream that only both ends can read and write. Receive and Send are the plain ones of Stream; what was
// changed on the way ends the stream with kGone.
class TlsStream final : public Stream {
 public:
  // Taken of who has not proved itself yet.
  static constexpr std::size_t kHandshakeBytes = 16u << 10;

  // Proves both ends to each other. kDenied: the other side cannot prove itself, or does not accept this one;
  // kTooLate and kGone as of streams. The context is borrowed until the task ends.
  static Task<Result<std::unique_ptr<TlsStream>>> Handshake(Executor& executor, const TlsContext& context,
                                                            TlsRole role, std::unique_ptr<Stream> stream,
                                                            Instant deadline);
  ~TlsStream() override;

  Executor& executor() override { return stream_->executor(); }
  Task<Result<std::size_t>> Receive(std::span<const Piece> into, Instant deadline) override;
  Task<Status> Send(std::span<const ConstPiece> pieces, Instant deadline) override;
  void Close() override;
  const std::string& peer() const override { return stream_->peer(); }

  // Bytes that both ends of this connection know under this label and nobody else does (RFC 8446, 7.5).
  Status Export(std::string_view label, std::span<std::byte> into) const;
  // The stream below goes on without TLS, to be protected by exported keys: directly after the handshake,
  // before anything is sent or received here. `received` gets what already came from the other side's stream.
  std::unique_ptr<Stream> Detach(std::vector<std::byte>* received);

 private:
  TlsStream(std::unique_ptr<TlsState> state, std::unique_ptr<Stream> stream);
  // Sends what TLS has to say.
  Task<Status> Flush(Instant deadline);
  // Waits for bytes from the other side, `most` of them, and gives them to TLS; false: it closed.
  Task<Result<bool>> Fill(Instant deadline, std::size_t most = SIZE_MAX);
  Task<Status> Shake(Instant deadline);

  std::unique_ptr<TlsState> state_;
  std::unique_ptr<Stream> stream_;
  Outbox outbox_;
  std::uint64_t received_ = 0;
  bool closed_ = false;
};

}  // namespace cistern::net
