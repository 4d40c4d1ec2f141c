// SPDX-License-Identifier: Apache-2.0
#include "mesh/drop_writer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/step_budget.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kRetryUs = 50'000;

}  // namespace

Task<Result<DropReceipt>> DropWriter::Write(CellDrop drop, DropWait wait, Instant deadline) {
  if (Status status = drop.Validate(); !status.ok()) co_return Error(std::move(status));
  if (drop.keys.size() > DropLimits::kKeysOfCall)
    co_return Error(Code::kInvalid,
                    Text("drop: ", drop.keys.size(), " keys in one call and the limit is ",
                         DropLimits::kKeysOfCall, ": name them in several, or the namespace"));
  auto cut_up = Parts(std::move(drop));
  const std::vector<Part> all = co_await cut_up;
  if (ends_) co_return Error(Code::kGone, "drop: this member leaves its cell, so nothing was dropped");
  if (!state_.joined)
    co_return Error(Code::kGone, Text("drop: this member has not joined its cell, so nothing was dropped: ",
                                      state_.trouble.message()));
  if (waiting_.size() + all.size() > kWaiting)
    co_return Error(Code::kBusy,
                    Text("drop: ", waiting_.size(), " drops wait to be written and the limit is ", kWaiting,
                         ": try again"));
  for (bool was_written = false;; was_written = true) {
    std::vector<CallPtr> parts;
    for (const Part& part : all) {
      parts.push_back(std::make_shared<Call>());
      parts.back()->part = part;
      parts.back()->deadline = deadline;
      parts.back()->was_written = was_written;
      waiting_.push_back(parts.back());
    }
    more_.Set();
    if (Status status = co_await Written(parts, deadline); !status.ok()) co_return Error(std::move(status));
    DropReceipt receipt{.history = parts.front()->history};
    bool one_history = true;
    BatchMark last;
    std::string missing;
    for (const CallPtr& part : parts) {
      if (part->batch.revision > last.revision) last = part->batch;
      one_history = one_history && part->history == receipt.history;
    }
    receipt.revision = last.revision;
    if (wait == DropWait::kDurable && one_history) co_return receipt;
    Status waited;
    while (one_history && state_.history == receipt.history && waited.ok() && !ends_) {
      // The view is as late as what was seen: who was a member at the drop's revision is in it, or has
      // lapsed.
      const bool all_seen =
          std::ranges::all_of(parts, [this](const CallPtr& part) { return state_.known.Has(part->batch); });
      if (all_seen && state_.seen >= receipt.revision && state_.applied >= receipt.revision) {
        const Acknowledgement said =
            AcknowledgedBy(state_.view, state_.heard, state_.known, receipt.history, last);
        receipt.applied = said.applied;
        receipt.members = said.members;
        missing = said.missing;
        if (said.complete()) co_return receipt;
      }
      waited = co_await state_.changed.Wait(deadline);
    }
    if (!waited.ok() || ends_) co_return Error(Unacknowledged(receipt, missing));
    // Its history has ended: what was dropped under it is dropped again under the next.
  }
}

Status DropWriter::Unacknowledged(const DropReceipt& receipt, const std::string& missing) const {
  std::string text = Text("drop: durable at revision ", receipt.revision, ", ", receipt.applied, " of ",
                          receipt.members, " members have applied it by ");
  if (ends_) {
    text += "the end of this member, and the others will";
  } else {
    text += "the deadline";
    if (!missing.empty())
      text += Text(", and ", missing,
                   " not yet: `cistern cell` and its log say why; one that is gone is waited "
                   "for as long as its membership stands");
  }
  return Status(Code::kTooLate, std::move(text));
}

void DropWriter::End() {
  ends_ = true;
  const Status why(Code::kGone, "this member leaves its cell");
  for (const CallPtr& call : std::exchange(waiting_, {})) Refuse(*call, why);
  state_.changed.Pulse();
}

void DropWriter::Refuse(Call& call, const Status& why) {
  const bool open = call.may_take_effect();
  call.done = true;
  call.status =
      Status(open && why.code() != Code::kBusy ? Code::kTooLate : why.code(),
             Text("drop: ", why.message(), open ? ", and it may take effect" : ", so nothing was dropped"));
  call.changed.Set();
}

void DropWriter::Batch::SetSent(bool now) {
  sent = now;
  for (const CallPtr& call : calls) call->sent = now;
}

Task<std::vector<DropWriter::Part>> DropWriter::Parts(CellDrop drop) {
  std::vector<Part> parts;
  const std::span<const BlockKey> keys = drop.keys;
  for (std::size_t at = 0; at == 0 || at < keys.size(); at += DropLimits::kKeysOfDrop) {
    if (at > 0) co_await Yield();
    CellDrop part{.what = drop.what, .name = drop.name, .conversation = drop.conversation};
    const auto some = keys.subspan(at, std::min(keys.size() - at, DropLimits::kKeysOfDrop));
    part.keys.assign(some.begin(), some.end());
    const std::size_t bytes = EncodedBytes(part);
    parts.push_back({std::make_shared<const CellDrop>(std::move(part)), bytes});
    executor().AddWork(1 + some.size_bytes() / kBytesPerTouch);
  }
  co_return parts;
}

Task<Status> DropWriter::Written(std::vector<CallPtr> parts, Instant deadline) {
  for (const CallPtr& part : parts) {
    while (!part->done) {
      const Status in_time = co_await part->changed.Wait(deadline);
      if (in_time.ok()) continue;
      const bool open = std::ranges::any_of(parts, [](const CallPtr& one) { return one->may_take_effect(); });
      for (const CallPtr& one : parts) std::erase(waiting_, one);
      co_return Status(Code::kTooLate,
                       open ? "drop: etcd has not confirmed it by the deadline, and it may take effect"
                            : "drop: it was not written by the deadline, so nothing was dropped");
    }
    if (!part->status.ok()) {
      for (const CallPtr& one : parts) std::erase(waiting_, one);
      const bool some =
          std::ranges::any_of(parts, [](const CallPtr& one) { return one->done && one->status.ok(); });
      // Another batch may be on its way.
      const bool open =
          std::ranges::any_of(parts, [](const CallPtr& one) { return !one->done && one->may_take_effect(); });
      if (!some && !open) co_return part->status;
      co_return Status(Code::kTooLate,
                       Text("drop: some of its keys have been dropped", some ? "" : " or may be",
                            ", of the others: ", part->status.message(), ": ask again"));
    }
  }
  co_return Status();
}

DropWriter::Batch DropWriter::NextBatch() {
  Batch batch;
  const bool ends = waiting_.front()->part.drop->is_end();
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto& [drop, bytes] = (*at)->part;
    const bool fits = batch.drops.empty() || (batch.bytes + bytes <= DropLimits::kBatchBytes &&
                                              batch.drops.size() < DropLimits::kDropsOfBatch);
    if (drop->is_end() != ends || !fits) {
      ++at;
      continue;
    }
    batch.bytes += bytes;
    batch.drops.push_back(*drop);
    batch.calls.push_back(std::move(*at));
    at = waiting_.erase(at);
  }
  return batch;
}

Task<void> DropWriter::Run() {
  for (;;) {
    while (waiting_.empty()) {
      more_.Reset();
      co_await more_.Wait();
    }
    const std::size_t bytes = std::min(waiting_.front()->part.bytes, DropLimits::kBatchBytes);
    const Instant ready = share_.ReadyAt(bytes, state_.view.members.size(), executor().Now());
    if (ready > executor().Now()) {
      (void)co_await SleepUntil(ready);
      continue;
    }
    if (!waiting_.empty()) co_await Commit(NextBatch());
  }
}

Task<void> DropWriter::Commit(Batch batch) {
  const std::string value = EncodeBatch(batch.drops);
  const std::string key = (batch.drops.front().is_end() ? keys_.Ends() : keys_.Drops()) +
                          CellKeys::BatchName(process_number_, ++batches_);
  share_.Written(key.size() + value.size());
  Instant last;
  for (const CallPtr& call : batch.calls) last = std::max(last, call->deadline);
  Status why(Code::kTooLate, "it was not written by the deadline");
  Attempt came = Attempt::kAgain;
  while (came == Attempt::kAgain && executor().Now() < last && !ends_) {
    came = co_await Try(key, value, batch, last, &why);
    if (came == Attempt::kAgain) (void)co_await SleepUntil(executor().Now().PlusUs(kRetryUs));
  }
  // Whatever was said last: an earlier attempt may have been taken.
  if (came == Attempt::kAgain && batch.sent) why = Status(Code::kTooLate, "etcd has not confirmed it");
  if (came == Attempt::kOtherHistory) {
    // Once this member has joined it, what waits is written under it.
    while (!(state_.joined && state_.history != 0) && executor().Now() < last && !ends_) {
      (void)co_await state_.changed.Wait(last);
    }
    for (CallPtr& call : batch.calls) {
      call->was_written = call->may_take_effect();
      if (ends_) {
        Refuse(*call, Status(Code::kGone, "this member leaves its cell"));
        continue;
      }
      if (call->deadline <= executor().Now()) continue;
      waiting_.push_front(std::move(call));
    }
    more_.Set();
    co_return;
  }
  for (const CallPtr& call : batch.calls) {
    if (came != Attempt::kWritten) {
      Refuse(*call, why);
      continue;
    }
    call->done = true;
    call->changed.Set();
  }
}

Task<DropWriter::Attempt> DropWriter::Try(const std::string& key, const std::string& value, Batch& batch,
                                          Instant last, Status* why) {
  using etcd::Compare;
  using etcd::Operation;
  const std::int64_t highest = state_.past.highest_revision;
  const std::uint64_t history = state_.history;
  etcd::Transaction write;
  write.conditions.push_back({.key = key, .what = Compare::What::kCreateRevision, .number = 0});
  write.conditions.push_back({.key = keys_.History(), .number = state_.history_revision});
  write.then.push_back({.keys = {key, ""}, .value = value});
  write.otherwise.push_back({.kind = Operation::Kind::kRange, .keys = {key, ""}});
  write.otherwise.push_back({.kind = Operation::Kind::kRange, .keys = {keys_.History(), ""}});
  const Instant deadline = executor().Now().PlusUs(CellLimits::kCallUs);
  const bool sent_before = batch.sent;
  batch.SetSent(true);
  const auto answer = co_await etcd_.Commit(std::move(write), deadline);
  if (!answer) {
    const Code code = answer.error().code();
    *why = answer.error();
    if (code == Code::kTooLate || code == Code::kIoError) co_return Attempt::kAgain;
    if (code == Code::kBusy) state_.refused = answer.error();
    // A full etcd has taken the first that it had no room for. Else this attempt has changed nothing.
    if (code != Code::kBusy) batch.SetSent(sent_before);
    co_return sent_before ? Attempt::kAgain : Attempt::kRefused;
  }
  const etcd::Header& header = answer->header;
  // What has changed something is at a revision that nobody has seen before.
  const bool lower = header.revision < highest || (answer->succeeded && header.revision == highest);
  const bool same = state_.history == history;  // else another's past is known by now
  if (header.cluster_id != state_.past.cluster_id || lower) {
    if (same) state_.past.contradicted = true;
    // The next look finds it too. Whatever was written there counts for nothing.
    while (state_.history == history && executor().Now() < last && !ends_)
      (void)co_await state_.changed.Wait(last);
    co_return Attempt::kOtherHistory;
  }
  if (same) state_.past.highest_revision = std::max(state_.past.highest_revision, header.revision);
  std::int64_t revision = header.revision;
  if (!answer->succeeded) {
    const etcd::RangeAnswer& there = answer->ranges[0];
    if (there.keys.empty()) {
      // The history's key has changed: what comes by the watch says whether the history has.
      if (state_.history == history)
        (void)co_await state_.changed.Wait(executor().Now().PlusUs(CellLimits::kLookUs));
      co_return state_.history == history ? Attempt::kAgain : Attempt::kOtherHistory;
    }
    if (there.keys.front().value != value) {
      *why = Status(Code::kDenied, Text("another batch has the name ", key,
                                        ", so another member has this one's process number: one of them is "
                                        "a copy of a running machine; start that one's node anew"));
      batch.SetSent(false);
      co_return Attempt::kRefused;
    }
    revision = there.keys.front().create_revision;  // an earlier attempt whose answer was lost
  }
  state_.refused = Status();
  for (const CallPtr& call : batch.calls) {
    call->history = history;
    call->batch = {revision, BatchHash(key)};
  }
  co_return Attempt::kWritten;
}

}  // namespace cistern::mesh
