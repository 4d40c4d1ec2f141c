// SPDX-License-Identifier: Apache-2.0
#include "net/sealed_stream.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "net/pieces.h"

namespace cistern::net {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kTagBytes = 16;
constexpr std::size_t kNonceBytes = 12;
constexpr std::size_t kWholeChunkBytes = kLengthBytes + kSealedChunkBytes + kTagBytes;
// Chunks that go to the network together, or are asked of it.
constexpr std::size_t kChunksAtOnce = 3;
constexpr std::size_t kPieces = 64;
// While one tile is sealed, the next one of the block comes out of memory. 16 times the 96 bytes that
// OpenSSL's kernel takes at once (decision 0047).
constexpr std::size_t kTileBytes = 16 * 96;
constexpr std::size_t kLineBytes = 64;
// Far below what one key may protect (2^32 invocations).
constexpr std::uint64_t kMaxChunks = 1ull << 31;

void Prefetch(const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(from + at);
}

unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* Raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

}  // namespace

// One direction: its key, and the number of the next chunk.
class SealedStream::Cipher final {
 public:
  Cipher(std::span<const std::byte> key, bool encrypt) : context_(EVP_CIPHER_CTX_new()) {
    CISTERN_ASSERT(context_ != nullptr && EVP_CipherInit_ex(context_, EVP_aes_128_gcm(), nullptr,
                                                            Raw(key.data()), nullptr, encrypt ? 1 : 0) == 1);
  }
  ~Cipher() { EVP_CIPHER_CTX_free(context_); }
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  bool spent() const { return chunks_ == kMaxChunks; }
  void Begin(const std::byte* length) {
    std::array<std::byte, kNonceBytes> nonce{};
    StoreAt(nonce.data(), 4, chunks_++);
    int moved = 0;
    CISTERN_ASSERT(EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, Raw(nonce.data()), -1) == 1 &&
                   EVP_CipherUpdate(context_, nullptr, &moved, Raw(length), kLengthBytes) == 1);
  }
  void Add(std::byte* into, const std::byte* from, std::size_t bytes) {
    int moved = 0;
    CISTERN_ASSERT(EVP_CipherUpdate(context_, Raw(into), &moved, Raw(from), static_cast<int>(bytes)) == 1);
  }
  // What lies in memory.
  void AddInTiles(std::byte* into, const std::byte* from, std::size_t bytes) {
    while (bytes > 0) {
      const std::size_t now = std::min(bytes, kTileBytes), next = std::min(bytes - now, kTileBytes);
      Prefetch(from + now, next);
      Add(into, from, now);
      into += now;
      from += now;
      bytes -= now;
    }
  }
  void EndSealing(std::byte* tag) {
    int moved = 0;
    std::array<unsigned char, kTagBytes> none;
    CISTERN_ASSERT(EVP_EncryptFinal_ex(context_, none.data(), &moved) == 1 &&
                   EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_GET_TAG, kTagBytes, tag) == 1);
  }
  bool EndOpening(const std::byte* tag) {
    int moved = 0;
    std::array<unsigned char, kTagBytes> own;
    std::memcpy(own.data(), tag, kTagBytes);
    CISTERN_ASSERT(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_SET_TAG, kTagBytes, own.data()) == 1);
    return EVP_DecryptFinal_ex(context_, own.data(), &moved) == 1;
  }

 private:
  EVP_CIPHER_CTX* context_;
  std::uint64_t chunks_ = 0;
};

SealedStream::SealedStream(std::unique_ptr<Stream> stream, const SealedKeys& keys,
                           std::vector<std::byte> received)
    : stream_(std::move(stream)),
      sealer_(std::make_unique<Cipher>(keys.send, true)),
      opener_(std::make_unique<Cipher>(keys.receive, false)),
      came_(std::move(received)),
      came_end_(came_.size()) {
  sealed_.resize(kChunksAtOnce * kWholeChunkBytes);
  came_.resize(std::max(came_.size(), kChunksAtOnce * kWholeChunkBytes));
}

SealedStream::~SealedStream() = default;

Result<std::size_t> SealedStream::NextChunk() const {
  const std::size_t here = came_end_ - came_at_;
  if (here < kLengthBytes) return std::size_t{0};
  const auto bytes = LoadAt<std::uint32_t>(came_.data(), came_at_);
  if (bytes == 0 || bytes > kSealedChunkBytes)
    return Error(Code::kGone,
                 Text(peer(), ": sent a chunk of ", bytes, " bytes, and 1 to ", kSealedChunkBytes,
                      " are allowed: the connection is not sealed there, or was changed"));
  return here < kLengthBytes + bytes + kTagBytes ? std::size_t{0} : std::size_t{bytes};
}

bool SealedStream::Open(std::span<const Piece> into, std::size_t bytes) {
  const std::byte* from = came_.data() + came_at_;
  opener_->Begin(from);
  from += kLengthBytes;
  for (const Piece& piece : into) {
    opener_->Add(piece.data(), from, piece.size());
    from += piece.size();
  }
  came_at_ += kLengthBytes + bytes + kTagBytes;
  return opener_->EndOpening(from);
}

Status SealedStream::Forged() {
  Close();
  return Status(Code::kGone, Text(peer(), ": sent a chunk that was changed on the way, or is another's"));
}

Task<Result<std::size_t>> SealedStream::Receive(std::span<const Piece> into, Instant deadline) {
  PieceCursor<std::byte> cursor(into);
  std::array<Piece, kPieces> pieces;
  std::size_t received = 0;
  const auto take_plain = [&] {
    while (plain_at_ < plain_.size() && !cursor.done()) {
      const std::size_t bytes = std::min(cursor.next().size(), plain_.size() - plain_at_);
      std::memcpy(cursor.next().data(), plain_.data() + plain_at_, bytes);
      plain_at_ += bytes;
      received += bytes;
      cursor.Advance(bytes);
    }
  };
  for (;;) {
    if (closed_) co_return Error(Code::kGone, Text(peer(), ": the connection was closed"));
    take_plain();
    Result<std::size_t> chunk = NextChunk();
    if (!chunk) {
      Close();
      co_return Error(chunk.error());
    }
    if (received > 0 && (*chunk == 0 || cursor.done())) co_return received;
    if (*chunk > 0) {
      const std::size_t count = cursor.Fill(pieces, *chunk);
      const std::span<const Piece> room = std::span(pieces).first(count);
      if (TotalBytes(room) == *chunk) {
        if (!Open(room, *chunk)) co_return Error(Forged());
        received += *chunk;
        cursor.Advance(*chunk);
        continue;
      }
      if (received > 0) co_return received;
      plain_.resize(*chunk);
      plain_at_ = 0;
      const Piece whole(plain_);
      if (!Open({&whole, 1}, *chunk)) co_return Error(Forged());
      continue;
    }
    std::memmove(came_.data(), came_.data() + came_at_, came_end_ - came_at_);
    came_end_ -= std::exchange(came_at_, 0);
    const Piece more = std::span(came_).subspan(came_end_);
    Result<std::size_t> bytes = co_await stream_->Receive({&more, 1}, deadline);
    if (!bytes) co_return Error(bytes.error());
    if (*bytes == 0) {
      if (came_end_ == 0) co_return std::size_t{0};
      co_return Error(Code::kGone, Text(peer(), ": the connection ended in the middle of a chunk"));
    }
    came_end_ += *bytes;
  }
}

Task<Status> SealedStream::Send(std::span<const ConstPiece> from, Instant deadline) {
  PieceCursor<const std::byte> cursor(from);
  std::array<ConstPiece, kPieces> pieces;
  while (!cursor.done()) {
    std::size_t end = 0;
    for (std::size_t i = 0; i < kChunksAtOnce && !cursor.done(); ++i) {
      if (sealer_->spent()) {
        Close();
        co_return Status(Code::kGone, Text(peer(), ": the connection's key is used up; connect again"));
      }
      const std::span<const ConstPiece> chunk =
          std::span(pieces).first(cursor.Fill(pieces, kSealedChunkBytes));
      std::byte* at = sealed_.data() + end;
      const std::size_t bytes = TotalBytes(chunk);
      StoreAt(at, 0, static_cast<std::uint32_t>(bytes));
      sealer_->Begin(at);
      at += kLengthBytes;
      for (const ConstPiece& piece : chunk) {
        sealer_->AddInTiles(at, piece.data(), piece.size());
        at += piece.size();
      }
      sealer_->EndSealing(at);
      cursor.Advance(bytes);
      end += kLengthBytes + bytes + kTagBytes;
    }
    const ConstPiece chunks = std::span(sealed_).first(end);
    if (Status status = co_await stream_->Send({&chunks, 1}, deadline); !status.ok()) co_return status;
  }
  co_return Status();
}

Task<Result<std::unique_ptr<Stream>>> SealStream(Executor& executor, const TlsContext& context, TlsRole role,
                                                 std::unique_ptr<Stream> stream, Instant deadline) {
  auto shaken = co_await TlsStream::Handshake(executor, context, role, std::move(stream), deadline);
  if (!shaken) co_return Error(shaken.error());
  SealedKeys keys;
  std::array<std::byte, kSealedKeyBytes> of_client, of_server;
  Status status = (*shaken)->Export("EXPORTER-cistern-rail-client", of_client);
  if (status.ok()) status = (*shaken)->Export("EXPORTER-cistern-rail-server", of_server);
  if (!status.ok()) co_return Error(std::move(status));
  keys.send = role == TlsRole::kClient ? of_client : of_server;
  keys.receive = role == TlsRole::kClient ? of_server : of_client;
  std::vector<std::byte> received;
  std::unique_ptr<Stream> below = (*shaken)->Detach(&received);
  co_return std::make_unique<SealedStream>(std::move(below), keys, std::move(received));
}

}  // namespace cistern::net
