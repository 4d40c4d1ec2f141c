// SPDX-License-Identifier: Apache-2.0
// Fetching ahead of a session's next turn: what lies below memory of a prompt whose caller said when a later
// one goes on from it is brought into memory shortly before, and is held there until shortly after.
//
// How shortly hangs on how true such times have been, and on what the prompt's bytes take to be read. What
// was learned of turns that nobody announced is too vague for it: docs/decisions/0039-fetching-ahead.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

namespace cistern::policy {

class FetchAhead final {
 public:
  // Of memory, half may be held for turns to come. All in blocks, or all in bytes.
  static constexpr std::uint64_t MostHeld(std::uint64_t memory) { return memory / 2; }
  static constexpr bool MayHold(std::uint64_t held, std::uint64_t memory) { return held <= MostHeld(memory); }

  // In milliseconds from the turn that told of the next.
  struct Window {
    std::uint64_t from_ms = 0, until_ms = 0;
    friend bool operator==(const Window&, const Window&) = default;
  };
  // Nothing where the times that were told are too often wrong. It begins later than the turn that told of
  // it, which reads the same blocks.
  std::optional<Window> WindowOf(std::uint32_t told_ms) const {
    if (error_ > kMostError) return std::nullopt;
    const auto margin_ms = std::max(kLeastMarginMs, static_cast<std::uint64_t>(2 * error_ * told_ms));
    return Window{told_ms > margin_ms ? told_ms - margin_ms : 1, told_ms + margin_ms};
  }
  // When it is asked how many bytes there are to be read, and when their fetch begins: as much before the
  // window as they take, one read after the other. No sooner than half way there, since what is held early
  // takes room from others: the rest the turn reads itself.
  static constexpr std::uint64_t AskMs(const Window& window) { return window.from_ms / 2; }
  std::uint64_t BeginMs(const Window& window, std::uint64_t bytes) const {
    const auto most_ms = static_cast<double>(window.from_ms - AskMs(window));
    return window.from_ms - static_cast<std::uint64_t>(std::min(ReadMs(bytes), most_ms));
  }
  // A read ahead of so many bytes, 1 at least, took so long. One that took many times as long as those before
  // was under way while the node stood still, and says little of them.
  void NoteRead(std::uint64_t bytes, std::uint64_t took_us) {
    auto us = static_cast<double>(took_us);
    if (read_us_ > 0) us = std::min(us, kMostTimes * static_cast<double>(bytes) * read_us_ / read_bytes_);
    reads_ = std::min(reads_ + 1, kMemory);
    const double weight = 1 / reads_;
    read_bytes_ += (static_cast<double>(bytes) - read_bytes_) * weight;
    read_us_ += (us - read_us_) * weight;
  }

  // Whether a prompt that goes on so long after one that told of its next turn is that turn. What comes at
  // once and not as told is not: the same prompt is asked for again.
  static bool IsTurn(std::uint32_t told_ms, std::uint64_t came_ms) {
    return came_ms >= kAgainMs || OffMs(told_ms, came_ms) <= kLeastMarginMs;
  }
  // A turn that was told for `told_ms` came after so many; nothing: it did not come while it was waited for.
  // All that were told are noted, fetched for or not: so times that become true are believed again.
  void Note(std::uint32_t told_ms, std::optional<std::uint64_t> came_ms) {
    double wrong = 1;
    if (came_ms && told_ms > 0) {
      const double off_ms = OffMs(told_ms, *came_ms);
      wrong = off_ms <= kLeastMarginMs ? 0 : std::min(1.0, off_ms / told_ms);
    }
    error_ += (wrong - error_) / kMemory;
  }

 private:
  static double OffMs(std::uint32_t told_ms, std::uint64_t came_ms) {
    return std::abs(static_cast<double>(came_ms) - told_ms);
  }
  static constexpr std::uint64_t kLeastMarginMs = 1'000;
  static constexpr std::uint64_t kAgainMs = 1'000;
  static constexpr double kMemory = 64;  // turns, or reads
  static constexpr double kMostTimes = 8;
  // Beyond it what is held for too long costs more hits than it brings.
  static constexpr double kMostError = 1.0 / 6;

  // By the reads before; none is known before the first.
  double ReadMs(std::uint64_t bytes) const {
    return read_bytes_ == 0 ? 0 : static_cast<double>(bytes) * read_us_ / read_bytes_ / 1'000;
  }

  double error_ = 1.0 / 16;              // mean of |came - told| / told
  double read_bytes_ = 0, read_us_ = 0;  // means of a read
  double reads_ = 0;                     // that they are of, kMemory at most
};

}  // namespace cistern::policy
