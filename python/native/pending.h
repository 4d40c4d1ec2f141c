// SPDX-License-Identifier: Apache-2.0
// A call in flight as Python has it: begun without the GIL, waited for without it, converted with it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cistern/ticket.h"
#include "errors.h"
#include "gil.h"

namespace cistern::python {

namespace nb = nanobind;

class PendingPuts {
 public:
  virtual ~PendingPuts() = default;
  virtual std::uint64_t id() const = 0;
  virtual bool Ready() = 0;
  // Waits for the answer and gives it, or throws; once.
  virtual nb::object Finish() = 0;
};

// `Convert` makes the answer of Result<T>; what it holds (buffers, keys) lives as long as the call.
template <class T, class Convert>
class PendingOf final : public PendingPuts {
 public:
  PendingOf(Ticket<T> ticket, Convert convert) : ticket_(std::move(ticket)), convert_(std::move(convert)) {}
  ~PendingOf() override {
    // The ticket goes before the buffers that it may still be filling.
    const WithoutGil without;
    ticket_.reset();
  }
  std::uint64_t id() const override { return ticket_ ? ticket_->id() : 0; }
  bool Ready() override { return !ticket_ || ticket_->ready(); }
  nb::object Finish() override {
    if (!ticket_) Throw(Code::kInvalid, "this call's answer was taken already");
    // Of this thread alone, while another one may ask for it or whether it is there.
    std::optional<Ticket<T>> ticket = std::exchange(ticket_, std::nullopt);
    std::optional<Result<T>> result;
    {
      const WithoutGil without;
      result.emplace(ticket->Wait());
      ticket.reset();
    }
    return convert_(std::move(*result));
  }

 private:
  std::optional<Ticket<T>> ticket_;
  Convert convert_;
};

using PendingCall = std::unique_ptr<PendingPuts>;

// Calls `begin` without the GIL.
template <class T, class Begin, class Convert>
PendingCall BeginCall(Begin begin, Convert convert) {
  std::optional<Ticket<T>> ticket;
  {
    const WithoutGil without;
    ticket.emplace(begin());
  }
  return std::make_unique<PendingOf<T, Convert>>(std::move(*ticket), std::move(convert));
}

}  // namespace cistern::python
