// SPDX-License-Identifier: Apache-2.0
#include "net/outbox.h"

#include <utility>

namespace cistern::net {
namespace {

// Room that is kept for what comes next; more is given back.
constexpr std::size_t kKeptBytes = 128u << 10;

}  // namespace

Task<Status> Outbox::SendOnce(Instant deadline) {
  going_.clear();
  if (going_.capacity() > kKeptBytes) going_.shrink_to_fit();
  std::swap(going_, unsent_);
  const ConstPiece piece(going_);
  co_return co_await stream_.Send({&piece, 1}, deadline);
}

Task<Status> Outbox::Flush(Instant deadline) {
  if (flushing_) co_return Status();
  flushing_ = true;
  Status status;
  while (status.ok() && !unsent_.empty()) status = co_await SendOnce(deadline);
  flushing_ = false;
  co_return status;
}

}  // namespace cistern::net
