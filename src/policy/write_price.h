// SPDX-License-Identifier: Apache-2.0
// What a write to a lower tier has to be worth. The tier is a log: each write takes the room of what was
// written longest ago, so with one write in a thousand less all that is written lies there a thousandth
// longer. A block is worth its write if it is used again while it lies there, P(T) with T the time that it
// does, more often than those others would be in the time that they gain, T * dP/dT in the mean. Where an
// endurance budget pays for less than that, the price is what the best blocks that it pays for are worth.
//
// Free while there is room, and where nothing is known of returns.
#pragma once

#include <array>
#include <cstdint>

#include "policy/order.h"

namespace cistern::policy {

// What a tier says of the room that it gives.
struct WriteTerms {
  // How long records lie there: the age of the oldest. 0: there is room for more.
  double turn_ms = 0;
  // Bytes that are written again to keep them, for each byte that is new.
  double moved = 0;
  // The endurance budget, and the share of an hour of it that is saved up; 0: none.
  double budget_bytes_a_ms = 0;
  double saved = 0;
};

class WritePrice final {
 public:
  // A block was put, of which its class is known.
  void Offer(Reuse::Class in, std::uint64_t bytes, std::uint64_t now_ms);
  // True if the price is to be worked out anew: once a second.
  bool Due(std::uint64_t now_ms) const { return now_ms - priced_ms_ >= kPricedMs; }
  void Set(const Order& order, const WriteTerms& terms, std::uint64_t now_ms);
  // True if a block of the class is worth its write.
  bool Pays(const Order& order, Reuse::Class in) const {
    return price_ == 0 || order.ReturnsWithin(in, turn_ms_) >= price_;
  }
  double price() const { return price_; }

 private:
  static constexpr std::uint64_t kPricedMs = 1'000;

  double PriceOfRoom(const Order& order, const WriteTerms& terms) const;
  double PriceOfBudget(const Order& order, const WriteTerms& terms) const;

  std::array<double, Reuse::kClasses> offered_{};  // bytes, of the last half an hour or so
  double all_offered_ = 0;
  std::uint64_t first_ms_ = 0, offered_ms_ = 0;  // when the first and the last were
  std::uint64_t priced_ms_ = 0;
  double turn_ms_ = 0;
  double price_ = 0;
};

}  // namespace cistern::policy
