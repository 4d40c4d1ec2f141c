// SPDX-License-Identifier: Apache-2.0
// A stream whose other end is a fuzzer's bytes: they come in steps of a few, then the stream ends or falls
// silent. For fuzzers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "base/event.h"
#include "net/stream.h"

namespace cistern::net {

class FuzzStream final : public Stream {
 public:
  struct Options {
    std::size_t step = 1;                    // bytes of a Receive at most
    std::size_t waits_at = ~std::size_t{0};  // bytes; those behind them come after Go
    bool at_once = false;                    // a Receive lets nobody else run
    bool falls_silent = false;               // behind the last byte, where others end
    std::size_t takes = ~std::size_t{0};     // Sends; later ones stand still
    std::vector<std::byte>* sent = nullptr;  // what was taken, in order; borrowed
  };
  // The bytes are borrowed.
  FuzzStream(Executor& runs_on, ConstPiece bytes, const Options& options)
      : executor_(runs_on), options_(options), bytes_(bytes) {}

  void Go() {
    options_.waits_at = ~std::size_t{0};
    news_.Pulse();
  }

  Executor& executor() override { return executor_; }
  const std::string& peer() const override { return peer_; }
  Task<Result<std::size_t>> Receive(std::span<const Piece> into, Instant deadline) override {
    if (!options_.at_once) co_await Yield();
    while (!closed_ && (at_ == options_.waits_at || (at_ == bytes_.size() && options_.falls_silent))) {
      const Status news = co_await news_.Wait(deadline);
      if (!news.ok()) co_return Error(Code::kTooLate, "fuzz: silent");
    }
    if (closed_) co_return Error(Code::kGone, "fuzz: closed");
    std::size_t moved = 0;
    for (const Piece& piece : into) {
      const std::size_t there = std::min(bytes_.size(), options_.waits_at) - at_;
      const std::size_t count = std::min({piece.size(), there, options_.step - moved});
      std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), count, piece.begin());
      at_ += count;
      moved += count;
    }
    co_return moved;
  }
  Task<Status> Send(std::span<const ConstPiece> pieces, Instant deadline) override {
    co_await Yield();
    while (!closed_ && options_.takes == 0) {
      const Status news = co_await news_.Wait(deadline);
      if (news.ok()) continue;
      Close();
      co_return Status(Code::kTooLate, "fuzz: takes nothing");
    }
    if (closed_) co_return Status(Code::kGone, "fuzz: closed");
    --options_.takes;
    for (const ConstPiece& piece : pieces) {
      if (options_.sent != nullptr) options_.sent->insert(options_.sent->end(), piece.begin(), piece.end());
    }
    co_return Status();
  }
  void Close() override {
    closed_ = true;
    news_.Pulse();
  }

 private:
  Executor& executor_;
  const std::string peer_ = "fuzz";
  Options options_;
  const ConstPiece bytes_;
  std::size_t at_ = 0;
  bool closed_ = false;
  Event news_;
};

}  // namespace cistern::net
