// SPDX-License-Identifier: Apache-2.0
#include "policy/write_price.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace cistern::policy {
namespace {
constexpr double kRememberedMs = 1'800'000;  // what was offered so long ago counts for a share of 1/e
constexpr double kSavedHours = 2;            // what is saved up is spent over half an hour
constexpr double kStep = 1.15;               // of a turn, to see how returns grow with it
}  // namespace

void WritePrice::Offer(Reuse::Class in, std::uint64_t bytes, std::uint64_t now_ms) {
  if (all_offered_ == 0) first_ms_ = offered_ms_ = now_ms;
  if (now_ms > offered_ms_) {
    const double kept = std::exp(-static_cast<double>(now_ms - offered_ms_) / kRememberedMs);
    for (double& of_class : offered_) of_class *= kept;
    all_offered_ *= kept;
    offered_ms_ = now_ms;
  }
  offered_[in] += static_cast<double>(bytes);
  all_offered_ += static_cast<double>(bytes);
}

void WritePrice::Set(const Order& order, const WriteTerms& terms, std::uint64_t now_ms) {
  priced_ms_ = now_ms;
  // Returns are known of as long as blocks have been seen.
  turn_ms_ = terms.turn_ms > 0 ? terms.turn_ms : static_cast<double>(now_ms - first_ms_);
  price_ = all_offered_ > 0 ? std::max(PriceOfRoom(order, terms), PriceOfBudget(order, terms)) : 0;
}

// T * dP/dT, which is dP / d(ln T), by a step to both sides of T.
double WritePrice::PriceOfRoom(const Order& order, const WriteTerms& terms) const {
  if (terms.turn_ms == 0) return 0;
  double more = 0;
  for (std::size_t in = 0; in < offered_.size(); ++in) {
    if (offered_[in] == 0) continue;
    const auto of = static_cast<Reuse::Class>(in);
    more += offered_[in] *
            (order.ReturnsWithin(of, turn_ms_ * kStep) - order.ReturnsWithin(of, turn_ms_ / kStep));
  }
  return more / all_offered_ / (2 * std::log(kStep));
}

// What the worst block is worth that the budget pays for, if the best are written first.
double WritePrice::PriceOfBudget(const Order& order, const WriteTerms& terms) const {
  if (terms.budget_bytes_a_ms == 0) return 0;
  const double seen_ms =
      kRememberedMs * (1 - std::exp(-static_cast<double>(offered_ms_ - first_ms_ + 1) / kRememberedMs));
  const double all_bytes_a_ms = all_offered_ / seen_ms * (1 + terms.moved);
  const double paid =
      terms.budget_bytes_a_ms * (1 + kSavedHours * terms.saved) / all_bytes_a_ms * all_offered_;
  if (paid >= all_offered_) return 0;
  std::array<std::pair<double, double>, Reuse::kClasses> classes;  // their worth, their bytes
  for (std::size_t in = 0; in < offered_.size(); ++in)
    classes[in] = {offered_[in] == 0 ? 0 : order.ReturnsWithin(static_cast<Reuse::Class>(in), turn_ms_),
                   offered_[in]};
  std::ranges::sort(classes, std::greater());
  double bytes = 0;
  const auto last =
      std::ranges::find_if(classes, [&](const auto& one) { return (bytes += one.second) >= paid; });
  return last == classes.end() ? 0 : last->first;
}

}  // namespace cistern::policy
