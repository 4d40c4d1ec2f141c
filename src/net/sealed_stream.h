// SPDX-License-Identifier: Apache-2.0
// A stream in chunks of AES-128-GCM: what rails carry where a cell is protected, because it is several times
// faster than TLS records of 16 KiB. Keys come from the TLS handshake of the same connection, one a
// direction, and are used for nothing else.
//
// A chunk is its length (4 bytes, little-endian, 1 to 65,536), so many bytes of ciphertext, and a tag of 16
// bytes that covers both. Its nonce is the number of the chunk on this connection and direction (NIST SP
// 800-38D, 8.2.1), so chunks that are left out, repeated, exchanged or changed end the stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "net/stream.h"
#include "net/tls.h"

namespace cistern::net {

inline constexpr std::size_t kSealedChunkBytes = 64u << 10;  // of plain bytes, at most
inline constexpr std::size_t kSealedKeyBytes = 16;

struct SealedKeys {
  std::array<std::byte, kSealedKeyBytes> send{}, receive{};
};

class SealedStream final : public Stream {
 public:
  // `received`: what came from the other side before.
  SealedStream(std::unique_ptr<Stream> stream, const SealedKeys& keys, std::vector<std::byte> received = {});
  ~SealedStream() override;

  Executor& executor() override { return stream_->executor(); }
  // Bytes count as received once their chunk's tag was right; until then the pieces may hold anything. kGone:
  // it was not, and the stream is closed.
  Task<Result<std::size_t>> Receive(std::span<const Piece> into, Instant deadline) override;
  Task<Status> Send(std::span<const ConstPiece> pieces, Instant deadline) override;
  void Close() override {
    closed_ = true;
    stream_->Close();
  }
  const std::string& peer() const override { return stream_->peer(); }

 private:
  class Cipher;

  // Bytes of the next chunk's plain text if the whole chunk is here; 0 if not; kGone if it is no chunk.
  Result<std::size_t> NextChunk() const;
  // Opens the next chunk, which is here, into so many bytes; false: its tag is wrong.
  bool Open(std::span<const Piece> into, std::size_t bytes);
  Status Forged();

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Cipher> sealer_, opener_;
  std::vector<std::byte> sealed_;  // chunks on their way out
  std::vector<std::byte> came_;    // chunks that came, from came_at_ to came_end_
  std::size_t came_at_ = 0, came_end_ = 0;
  std::vector<std::byte> plain_;  // an opened chunk for which there was no room, from plain_at_ on
  std::size_t plain_at_ = 0;
  bool closed_ = false;  // what came and was not received yet is of no connection any more
};

// Both ends prove themselves by TLS and go on with sealed chunks.
Task<Result<std::unique_ptr<Stream>>> SealStream(Executor& executor, const TlsContext& context, TlsRole role,
                                                 std::unique_ptr<Stream> stream, Instant deadline);

}  // namespace cistern::net
