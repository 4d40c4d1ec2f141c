// SPDX-License-Identifier: Apache-2.0
#include "flash/device.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/assert.h"
#include "base/format.h"

namespace cistern::flash {
namespace {

constexpr std::int64_t kPauseUs = 50;

std::uint64_t BytesOf(std::span<const std::span<const std::byte>> pieces) {
  std::uint64_t bytes = 0;
  for (const auto piece : pieces) bytes += piece.size();
  return bytes;
}

}  // namespace

Device::Transfer::Transfer(Device& device_in, Kind kind_in, std::uint64_t bytes_in)
    : device(device_in), kind(kind_in), bytes(bytes_in) {
  if (kind == Kind::kRead) expected = device.estimate_.Came(bytes, device.loop_.clock().Now());
  if (kind == Kind::kWrite) device.queued_write_bytes_ += bytes;
}

// The transfer has ended, was refused, or its task was dropped after a crash.
Device::Transfer::~Transfer() {
  if (kind == Kind::kWrite) device.queued_write_bytes_ -= bytes;
  if (flying) {
    device.Land(*this);
    if (kind == Kind::kWrite) device.estimate_.WriteEnded();
    if (kind == Kind::kRead) device.estimate_.Left(bytes);
  } else if (kind == Kind::kRead && expected.line != Estimate::kEnded) {
    device.estimate_.Left(bytes);
  }
}

Device::~Device() {
  lent_.Drop();
  CISTERN_ASSERT(!busy());
  while (loans_.PopFront() != nullptr) {
  }
}

void Device::Begin(io::File file) {
  CISTERN_ASSERT(!busy());
  file_ = std::move(file);
  named_ = file_.Named();
  state_ = State::kLookedAt;
  for (std::uint32_t& errors : errors_in_row_) errors = 0;
  bad_in_row_ = sound_in_row_ = 0;
  estimate_ = Estimate();
}

void Device::Enter() {
  CISTERN_ASSERT(state_ == State::kLookedAt);
  state_ = State::kServes;
  why_.clear();
}

bool Device::CloseFile() {
  CISTERN_ASSERT(!busy() && !in_service());
  state_ = State::kOut;
  return std::exchange(file_, io::File()).valid();
}

void Device::GoOut(std::string why) {
  const State before = std::exchange(state_, State::kOut);
  if (before == State::kOut) return;
  why_ = std::move(why);
  for (List<Transfer>& list : waiting_) {
    while (Transfer* transfer = list.PopFront()) {
      transfer->refused = true;
      transfer->go.Set();
    }
  }
  while (Loan* loan = loans_.PopFront()) {
    loan->status = OutStatus();
    loan->over.Set();
  }
  if (before == State::kServes) out_();
}

void Device::FailedFor(std::string_view what, const Status& status) {
  GoOut(Text(what, ": ", status.message()));
}

Status Device::OutStatus() const {
  return Status(Code::kIoError, Text("flash device ", path_, ": is out of service: ", why_));
}

bool Device::MayGo(const Transfer& transfer) const {
  switch (transfer.kind) {
    case Kind::kRead:
      return at_[0] == 0 ||
             (at_[0] < limits_.read_depth && read_bytes_at_ + transfer.bytes <= kReadBytesAtDevice);
    case Kind::kWrite: return at_[1] == 0 || (at_[1] < limits_.write_depth && waiting_[0].empty());
    case Kind::kSync: return true;
  }
  return true;
}

void Device::Launch(Transfer& transfer) {
  transfer.flying = true;
  transfer.began = loop_.clock().Now();
  transfer.began_watched_us = watched_us_;
  ++at_[static_cast<std::size_t>(transfer.kind)];
  if (transfer.kind == Kind::kRead) read_bytes_at_ += transfer.bytes;
  if (transfer.kind == Kind::kWrite) estimate_.WriteBegan();
  flying_.PushBack(transfer);
}

void Device::Land(Transfer& transfer) {
  transfer.flying = false;
  --at_[static_cast<std::size_t>(transfer.kind)];
  if (transfer.kind == Kind::kRead) read_bytes_at_ -= transfer.bytes;
}

void Device::StartWaiting() {
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    List<Transfer>& list = waiting_[static_cast<std::size_t>(kind)];
    while (!list.empty() && MayGo(*list.front())) {
      Transfer* transfer = list.PopFront();
      Launch(*transfer);
      transfer->go.Set();
    }
  }
}

// A transfer that waited was launched, or refused, by the one that woke it.
Task<Status> Device::Admit(Transfer& transfer) {
  if (out()) co_return OutStatus();
  if (transfer.kind == Kind::kSync ||
      (waiting_[static_cast<std::size_t>(transfer.kind)].empty() && MayGo(transfer))) {
    Launch(transfer);
    co_return Status();
  }
  waiting_[static_cast<std::size_t>(transfer.kind)].PushBack(transfer);
  co_await transfer.go.Wait();
  if (transfer.refused) co_return OutStatus();
  co_return Status();
}

Status Device::Ended(Transfer& transfer, Status status) {
  const Instant now = loop_.clock().Now();
  const auto kind = static_cast<std::size_t>(transfer.kind);
  transfer.Unlink();
  Land(transfer);
  if (transfer.kind == Kind::kRead) {
    const bool ran = !Stood(now) && stood_until_ <= transfer.expected.at;
    estimate_.Ended(transfer.expected, transfer.bytes, now, status.ok() && !out() && ran);
    transfer.expected.line = Estimate::kEnded;
  } else if (transfer.kind == Kind::kWrite) {
    estimate_.WriteEnded();
  }
  if (status.ok()) {
    errors_in_row_[kind] = 0;
    if (transfer.kind == Kind::kRead) ++counts_.reads, counts_.read_bytes += transfer.bytes;
    if (transfer.kind == Kind::kWrite) ++counts_.writes, counts_.written_bytes += transfer.bytes;
  } else {
    ++counts_.errors;
    if (++errors_in_row_[kind] >= kMaxErrorsInRow) {
      GoOut(Text(errors_in_row_[kind], " transfers in a row failed, the last one: ", status.message()));
    }
  }
  StartWaiting();
  if (status.ok() && out()) return OutStatus();
  return status;
}

// The loop's operations are at their limit, which is no fault of the device.
Task<void> Device::Pause() { co_await SleepUntil(loop_.clock().Now().PlusUs(kPauseUs)); }

Task<Status> Device::ReadFile(std::span<std::byte> into, std::uint64_t offset) {
  Status status = co_await file_.ReadAll(into, offset);
  while (status.code() == Code::kBusy) {
    co_await Pause();
    status = co_await file_.ReadAll(into, offset);
  }
  co_return status;
}

Task<Status> Device::Read(std::span<std::byte> into, std::uint64_t offset) {
  Transfer transfer(*this, Kind::kRead, into.size());
  Status admitted = co_await Admit(transfer);
  if (!admitted.ok()) co_return admitted;
  Status status = co_await ReadFile(into, offset);
  co_return Ended(transfer, std::move(status));
}

// One transfer.
Task<Status> Device::ReadTwice(std::span<std::byte> into, std::uint64_t offset) {
  Transfer transfer(*this, Kind::kRead, into.size());
  Status admitted = co_await Admit(transfer);
  if (!admitted.ok()) co_return admitted;
  Status status = co_await ReadFile(into, offset);
  if (!status.ok() && !out()) {
    ++counts_.errors;
    status = co_await ReadFile(into, offset);
  }
  co_return Ended(transfer, std::move(status));
}

Task<Status> Device::ReadPiece(std::span<std::byte> into, std::uint64_t offset, const Arrived& arrived) {
  Status status = co_await ReadFile(into, offset);
  if (status.ok()) arrived(into);
  co_return status;
}

// One transfer, however many operations it is.
Task<Status> Device::Read(std::span<std::byte> into, std::uint64_t offset, const Arrived& arrived) {
  Transfer transfer(*this, Kind::kRead, into.size());
  Status admitted = co_await Admit(transfer);
  if (!admitted.ok()) co_return admitted;
  // All are under way before the first is awaited. The last has what is left over, and nobody waits to be
  // told of it.
  std::vector<Task<Status>> tasks;
  std::uint64_t at = 0;
  if (at_[0] <= kReadsInPieces) {
    for (; into.size() - at >= 2 * kReadPieceBytes; at += kReadPieceBytes)
      tasks.push_back(ReadPiece(into.subspan(at, kReadPieceBytes), offset + at, arrived));
  }
  Status status = co_await ReadFile(into.subspan(at), offset + at);
  for (Task<Status>& task : tasks) {
    Status other = co_await task;
    if (status.ok()) status = std::move(other);
  }
  co_return Ended(transfer, std::move(status));
}

Task<Status> Device::Write(std::span<const std::span<const std::byte>> pieces, std::uint64_t offset) {
  Transfer transfer(*this, Kind::kWrite, BytesOf(pieces));
  Status admitted = co_await Admit(transfer);
  if (!admitted.ok()) co_return admitted;
  Status status = co_await file_.WriteAllV(pieces, offset);
  while (status.code() == Code::kBusy) {
    co_await Pause();
    status = co_await file_.WriteAllV(pieces, offset);
  }
  co_return Ended(transfer, std::move(status));
}

Task<Status> Device::Write(std::span<const std::byte> from, std::uint64_t offset) {
  const std::span<const std::byte> pieces[] = {from};
  co_return co_await Write(pieces, offset);
}

Task<Status> Device::SyncFile() {
  Transfer transfer(*this, Kind::kSync, 0);
  Status admitted = co_await Admit(transfer);
  if (!admitted.ok()) co_return admitted;
  Status status = co_await file_.Sync();
  while (status.code() == Code::kBusy) {
    co_await Pause();
    status = co_await file_.Sync();
  }
  co_return Ended(transfer, std::move(status));
}

Task<Status> Device::Sync() {
  std::monostate nothing;
  co_return co_await Lend(nothing, SyncFile());
}

Task<Status> Device::Read(Buffer& into, std::size_t bytes, std::uint64_t offset) {
  co_return co_await Lend(into, ReadTwice(into.bytes().first(bytes), offset));
}

Task<Status> Device::Write(Buffer& from, std::size_t bytes, std::uint64_t offset) {
  co_return co_await Lend(from, Write(std::span<const std::byte>(from.bytes().first(bytes)), offset));
}

std::shared_ptr<Device::Loan> Device::Lent(Task<Status> transfer) {
  auto loan = std::make_shared<Loan>();
  if (!out()) loans_.PushBack(*loan);
  lent_.Spawn(Follow(loan, std::move(transfer)));
  return loan;
}

Task<void> Device::Follow(std::shared_ptr<Loan> loan, Task<Status> transfer) {
  loan->status = co_await transfer;
  loan->ended = true;
  loan->Unlink();
  loan->over.Set();
}

void Device::Bad() {
  ++counts_.bad_records;
  sound_in_row_ = 0;
  if (++bad_in_row_ >= kMaxBadInRow) {
    GoOut(Text("it gave ", bad_in_row_, " records that are not what was written there"));
  }
}

void Device::Tick(Instant now) {
  if (Stood(now)) stood_until_ = now;
  watched_us_ += std::min(now.UsSince(std::exchange(ticked_, now)), kMaxTickGapUs);
  // It would take writes until the node ends, which no other node could find.
  if (in_service() && named_ && !file_.Named()) GoOut("its file was removed by another program");
  const Transfer* oldest = flying_.front();
  if (oldest == nullptr || out()) return;
  const std::int64_t us = std::min(now.UsSince(oldest->began), watched_us_ - oldest->began_watched_us);
  if (us <= limits_.hang_us) return;
  const char* what[] = {"read", "write", "sync"};
  GoOut(Text("a ", what[static_cast<std::size_t>(oldest->kind)], " of ", oldest->bytes,
             " bytes has hung for ", us / 1000, " ms and the limit is ", limits_.hang_us / 1000));
}

}  // namespace cistern::flash
