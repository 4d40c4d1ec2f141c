// SPDX-License-Identifier: Apache-2.0
#include "mesh/membership.h"

#include <optional>
#include <utility>

#include "base/event.h"
#include "base/format.h"

namespace cistern::mesh {

using etcd::Compare;

Status Membership::TakenBy(const MemberValue& other) const {
  // On the same boot each would take it from the other for ever.
  const bool same_boot = other.boot_id == value_.boot_id;
  return Status(same_boot ? Code::kDenied : Code::kLapsed,
                Text("two members with one id: '", id_, "' is now at ", other.address, ", process ",
                     Hex(other.process_number), ", and this one is process ", Hex(value_.process_number),
                     ": it shares nothing any more; give one of them another id"));
}

Task<Status> Membership::Enter(std::int64_t history_revision) {
  const auto deadline = [this] { return executor().Now().PlusUs(CellLimits::kCallUs); };
  entered_ = false;
  valid_until_ = {};
  // It was not kept while this could not follow, and would end just behind the joining.
  if (lease_ != 0) {
    Status renewed = co_await Renew(deadline());
    if (!renewed.ok()) co_return renewed;
  }
  if (lease_ == 0) {
    const Instant sent = BootNow();
    const Result<etcd::LeaseAnswer> granted = co_await etcd_.Grant(CellLimits::kLeaseS, deadline());
    if (!granted) co_return granted.error();
    lease_ = granted->id;
    renewed_until_ = EndOf(sent, granted->ttl_s);
    renewed_at_ = executor().Now();
  }
  etcd::RangeRequest own{.keys = {key_, ""}};
  const Result<etcd::RangeAnswer> found = co_await etcd_.Range(std::move(own), deadline());
  if (!found) co_return found.error();
  // Without one the key would stand for ever.
  if (lease_ == 0)
    co_return Status(Code::kLapsed, Text("member '", id_, "': its lease ended while it joined"));
  std::int64_t revision = 0;
  if (!found->keys.empty()) {
    revision = found->keys.front().mod_revision;
    const std::optional<MemberValue> other = MemberValue::Decode(found->keys.front().value);
    const bool ours =
        other && (other->process_number == value_.process_number || other->boot_id == value_.boot_id);
    if (!ours)
      co_return Status(
          Code::kLapsed,
          Text("two members with one id: '", id_, "' is already at ",
               other ? other->address : std::string("an unknown address"),
               " on another host or boot: give one of them another id; after a restart of the host "
               "it lapses within ",
               CellLimits::kLeaseS, " s"));
  }
  etcd::Transaction enter;
  enter.conditions.push_back({.key = key_, .number = revision});
  enter.conditions.push_back({.key = history_key_, .number = history_revision});
  enter.then.push_back({.keys = {key_, ""}, .value = value_.Encode(), .lease = lease_});
  const std::int64_t lease = lease_;
  const Instant until = renewed_until_;
  const Result<etcd::TransactionAnswer> entered = co_await etcd_.Commit(std::move(enter), deadline());
  if (!entered) {
    lease_ = 0;  // it may have ended; a key that was put under it all the same is put again under another
    co_return entered.error();
  }
  if (!entered->succeeded)
    co_return Status(Code::kLapsed, Text("member '", id_, "': the cell changed while it joined"));
  if (lease_ != lease)
    co_return Status(Code::kLapsed, Text("member '", id_, "': its lease ended while it joined"));
  entered_ = true;
  valid_until_ = until;
  co_return Status();
}

Task<Status> Membership::WriteAgain() {
  const Status lapsed(Code::kLapsed, Text("member '", id_, "': its membership has lapsed"));
  if (!entered_ || lease_ == 0) co_return lapsed;
  const std::string value = value_.Encode();
  etcd::Transaction write;
  write.conditions.push_back({.key = key_, .what = Compare::What::kValue, .value = value});
  write.then.push_back({.keys = {key_, ""}, .value = value, .lease = lease_});
  const Instant deadline = executor().Now().PlusUs(CellLimits::kCallUs);
  const Result<etcd::TransactionAnswer> written = co_await etcd_.Commit(std::move(write), deadline);
  if (!written) co_return written.error();
  co_return written->succeeded ? Status() : lapsed;
}

Task<void> Membership::KeepLease(std::function<bool()> fit) {
  for (;;) {
    (void)co_await SleepUntil(executor().Now().PlusUs(CellLimits::kKeepAliveUs));
    // Where etcd is silent the lease has not lapsed; where it has, the next look finds that the key is gone.
    if (lease_ != 0 && fit()) (void)co_await Renew(executor().Now().PlusUs(CellLimits::kKeepAliveUs));
  }
}

Task<Status> Membership::Renew(Instant deadline) {
  const std::int64_t lease = lease_;
  const Instant sent = BootNow();
  const Result<etcd::LeaseAnswer> renewed = co_await etcd_.KeepAlive(lease, deadline);
  if (!renewed) co_return renewed.error();
  if (lease_ != lease) co_return Status();
  if (renewed->ttl_s == 0) {
    lease_ = 0;
  } else {
    renewed_until_ = EndOf(sent, renewed->ttl_s);
    renewed_at_ = executor().Now();
  }
  co_return Status();
}

Status Membership::Confirm(const etcd::RangeAnswer& own, Instant asked_at) {
  if (!entered_) return Status();
  Status status;
  if (own.keys.empty()) {
    status = Status(Code::kLapsed, Text("member '", id_, "': its membership has lapsed"));
    lease_ = 0;
  } else if (const auto now = MemberValue::Decode(own.keys.front().value);
             !now || now->process_number != value_.process_number) {
    status = TakenBy(now.value_or(MemberValue{}));
  }
  if (!status.ok()) {
    entered_ = false;
    valid_until_ = {};
    return status;
  }
  if (own.keys.front().lease == lease_ && renewed_at_ < asked_at) valid_until_ = renewed_until_;
  return Status();
}

Status Membership::Confirm(const etcd::WatchEvent& event) const {
  if (event.key.key != key_) return Status();
  if (event.kind == etcd::WatchEvent::Kind::kDelete)
    return Status(Code::kLapsed, Text("member '", id_, "': its membership has lapsed"));
  const auto now = MemberValue::Decode(event.key.value);
  if (!now || now->process_number != value_.process_number) return TakenBy(now.value_or(MemberValue{}));
  return Status();
}

Task<void> Membership::Leave(Instant deadline) {
  entered_ = false;
  valid_until_ = {};
  if (lease_ != 0) (void)co_await etcd_.Revoke(std::exchange(lease_, 0), deadline);
}

}  // namespace cistern::mesh
