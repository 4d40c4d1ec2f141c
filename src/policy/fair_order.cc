// SPDX-License-Identifier: Apache-2.0
#include "policy/fair_order.h"

#include <algorithm>
#include <utility>

namespace cistern::policy {

bool FairOrder::Later(const Waiting& a, const Waiting& b) {
  return std::pair(a.start, a.order) > std::pair(b.start, b.order);
}

void FairOrder::Wait(Customer& customer) {
  waiting_.push_back({std::max(now_, customer.used_to_), joined_++, &customer});
  std::push_heap(waiting_.begin(), waiting_.end(), Later);
}

FairOrder::Customer* FairOrder::Next() {
  if (waiting_.empty()) return nullptr;
  std::pop_heap(waiting_.begin(), waiting_.end(), Later);
  const Waiting next = waiting_.back();
  waiting_.pop_back();
  now_ = next.start;
  return next.customer;
}

void FairOrder::Charge(Customer& customer, std::uint64_t work) {
  customer.used_to_ = std::max(customer.used_to_, now_) + std::max<std::uint64_t>(work, 1);
}

}  // namespace cistern::policy
