// SPDX-License-Identifier: Apache-2.0
// Who is served next of the customers that wait, by what each has used (start-time fair queueing): a service
// starts where the customer's last one ended, or, of one that had nothing to ask for, where the service now
// under way started; the earliest start is next. So who comes new waits for one more service of each of the
// others at most, whatever they ask for, and those who wait all the time get the same work each.
#pragma once

#include <cstdint>
#include <vector>

namespace cistern::policy {

class FairOrder final {
 public:
  // Stays until it neither waits nor will be charged.
  class Customer {
   private:
    friend class FairOrder;
    std::uint64_t used_to_ = 0;  // where its last service ended
  };

  // Joins those who wait; a customer does so once at a time.
  void Wait(Customer& customer);
  // Takes the customer to be served next out of those that wait; null: nobody waits.
  Customer* Next();
  // Counts work done for the customer, in its service or beside it; at least 1.
  void Charge(Customer& customer, std::uint64_t work);

  std::size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    std::uint64_t start;
    std::uint64_t order;  // of joining, among equal starts
    Customer* customer;
  };
  static bool Later(const Waiting& a, const Waiting& b);

  std::vector<Waiting> waiting_;  // a heap, the earliest first
  std::uint64_t now_ = 0;         // where the last service started
  std::uint64_t joined_ = 0;
};

}  // namespace cistern::policy
