// SPDX-License-Identifier: Apache-2.0
// Tickets over calls in flight.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

#include "cistern/ticket.h"
#include "client/channel.h"

namespace cistern::client {

// A ticket whose answer is `decode` of an ok completion: Result<T>(const Call&, const wire::Completion&).
template <class T, class Decode>
class Answered final : public internal::PendingCall<T> {
 public:
  Answered(Call call, Decode decode) : call_(std::move(call)), decode_(std::move(decode)) {}

  bool Ready() override { return call_.Ready(); }
  Result<T> Wait() override {
    Result<wire::Completion> completion = call_.Answer();
    if (!completion) return Error(std::move(completion.error()));
    return decode_(call_, *completion);
  }
  std::uint64_t id() const override { return call_.id(); }

 private:
  Call call_;
  Decode decode_;
};

template <class T>
Ticket<T> Failed(Status why) {
  return Ticket<T>(Result<T>(Error(std::move(why))));
}

// Submits and gives the ticket.
template <class T, class Decode>
Ticket<T> Ask(Call call, const Request& request, std::uint64_t args_bytes, Decode decode,
              std::shared_ptr<void> keep = nullptr) {
  if (Status status = call.Submit(request, args_bytes, std::move(keep)); !status.ok())
    return Failed<T>(std::move(status));
  return Ticket<T>(std::make_shared<Answered<T, Decode>>(std::move(call), std::move(decode)));
}

}  // namespace cistern::client
