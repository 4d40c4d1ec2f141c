// SPDX-License-Identifier: Apache-2.0
#include "mesh/member.h"

#include <algorithm>
#include <utility>

#include "base/event.h"
#include "base/format.h"

namespace cistern::mesh {

Status MemberOptions::Validate() const {
  if (Status status = ValidateMemberId(id); !status.ok()) return status;
  if (prefix.empty() || prefix.back() != '/')
    return Status(Code::kInvalid,
                  Text("prefix '", prefix, "': the cell's keys lie under a prefix that ends with '/'"));
  if (process_number == 0) return Status(Code::kInvalid, "process_number: is 0 and has to be random");
  if (listen.empty()) return Status(Code::kInvalid, "listen: says no address for the other members");
  if (listen.size() > kMaxAddressBytes || address.size() > kMaxAddressBytes)
    return Status(Code::kInvalid, Text("address: has more than ", kMaxAddressBytes, " bytes"));
  if (zone.size() > kMaxMemberId)
    return Status(Code::kInvalid, Text("zone: has ", zone.size(), " bytes and may have ", kMaxMemberId));
  return Status();
}

Result<std::unique_ptr<Member>> Member::Start(etcd::Etcd& etcd, net::Network& network, LocalStore& store,
                                              MemberOptions options) {
  if (Status status = options.Validate(); !status.ok()) return Error(std::move(status));
  auto listener = network.Listen(options.listen);
  if (!listener) return Error(listener.error());
  if (options.address.empty()) options.address = (*listener)->address();
  std::unique_ptr<Member> member(new Member(etcd, network, store, std::move(options), std::move(*listener)));
  member->peers_.Start();
  member->tasks_.Spawn(
      member->membership_.KeepLease([&follower = member->follower_] { return follower.CanFollow(); }));
  member->tasks_.Spawn(member->follower_.Settle());
  member->tasks_.Spawn(member->writer_.Run());
  member->tasks_.Spawn(member->trimmer_.Run());
  member->tasks_.Spawn(member->Run());
  return member;
}

Member::Member(etcd::Etcd& etcd, net::Network& network, LocalStore& store, MemberOptions options,
               std::unique_ptr<net::Listener> listener)
    : etcd_(etcd),
      options_(std::move(options)),
      keys_(options_.prefix),
      random_(options_.process_number),
      state_(random_.Next()),
      membership_(etcd, keys_, options_.id,
                  {options_.process_number, options_.boot_id, options_.address, options_.zone},
                  options_.boot),
      peers_(network, std::move(listener), options_.id, options_.process_number, state_, random_.Next(),
             options_.answers),
      follower_(etcd, keys_, options_.cell_keys, store, membership_, state_, random_.Next(),
                [this] { Told(); }),
      writer_(etcd, keys_, options_.process_number, state_),
      trimmer_(etcd, keys_, options_.id, options_.etcd_is_ours, state_),
      tasks_(etcd.executor()) {
  state_.trouble = Status(Code::kGone, "it has not joined its cell yet");
}

Member::~Member() { tasks_.Drop(); }

void Member::Abandon() {
  peers_.SetListener(nullptr, {});
  tasks_.Drop();
  peers_.Close();
}

void Member::Told() {
  state_.heard[options_.process_number] = state_.own();
  peers_.TellApplied();
}

Task<void> Member::Run() {
  for (;;) {
    Conclusion came = co_await follower_.Join();
    if (came.what == Conclusion::What::kGoOn) {
      came = co_await follower_.Follow();
    } else {
      ++failed_joins_;
    }
    state_.joined = false;
    state_.trouble = came.why;
    ended_ = came.what == Conclusion::What::kEnd;
    state_.changed.Pulse();
    if (ended_) {
      // Nobody's drops wait for it.
      co_await membership_.Leave(executor().Now().PlusUs(CellLimits::kCallUs));
      break;
    }
    const auto pause_us = static_cast<std::int64_t>(random_.Between(20'000, 500'000));
    (void)co_await SleepUntil(executor().Now().PlusUs(pause_us));
  }
}

std::optional<Answered> Member::Answering() const {
  if (!state_.joined) return std::nullopt;
  return state_.own();
}

bool Member::Same(const Answered& answered) const {
  return state_.joined && answered.history == state_.history && FootingOn(answered) == Footing::kCommon;
}

Footing Member::FootingOn(const Answered& answered) const {
  // No floor lies behind its own key, whoever wrote it.
  const CellFloor floor{std::min(state_.floor.drops, state_.floor_revision),
                        std::min(state_.floor.ends, state_.floor_revision)};
  return FootingOf(state_.known, floor, answered.a, answered.last);
}

bool Member::Behind(const Answered& answered) const {
  return state_.joined && answered.history == state_.history && FootingOn(answered) == Footing::kAhead;
}

Task<void> Member::Leave(Instant deadline) {
  state_.joined = false;
  state_.trouble = Status(Code::kGone, "it has left its cell");
  state_.changed.Pulse();
  co_await follower_.EndStoreCalls();
  tasks_.Drop();
  co_await membership_.Leave(deadline);
  // Nobody waits for what it says any more; it goes on until its store has ended, and answers nobody.
  peers_.Close();
}

}  // namespace cistern::mesh
