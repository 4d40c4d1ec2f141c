// SPDX-License-Identifier: Apache-2.0
// A file or block device of the tier: its transfers, in order and bounded in number, what they cost, and
// whether it may be trusted. It knows offsets and bytes, nothing of regions.
//
// Reads go before writes: up to read_depth reads and write_depth writes are at the device, and as long as
// reads wait one write at most. What waits is a task; a device that goes out of service refuses all that wait
// at once, while what is at the device already ends when the device lets go of its memory (R6). Who has lent
// it that memory need not wait: of memory in a Buffer, and of none, the wait ends when the device is out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/list.h"
#include "base/task.h"
#include "base/task_group.h"
#include "flash/buffer.h"
#include "flash/estimate.h"
#include "io/loop.h"

namespace cistern::flash {

// So many transfers of a kind in a row that fail take a device out; so do records that are not what was
// written, with fewer than kTrustReads sound ones between them.
inline constexpr std::uint32_t kMaxErrorsInRow = 8;
inline constexpr std::uint32_t kMaxBadInRow = 16;
inline constexpr std::uint32_t kTrustReads = 128;

// A node looks at its devices far more often than this. Where more time lies between two looks, the node
// itself did not run, and no more than this of it counts as a transfer's.
inline constexpr std::int64_t kMaxTickGapUs = 1'000'000;
// Where ticks are farther apart the process stood, or hardly ran: a read of that time says nothing of the
// device.
inline constexpr std::int64_t kStoodUs = 200'000;

// As long as more than this many bytes of reads are at the device, others wait their turn here. It keeps any
// device busy, and a device that serves what it has in an order of its own then cannot make the time that a
// read takes unforeseeable.
inline constexpr std::uint64_t kReadBytesAtDevice = 16u << 20;

// A large read is told of in pieces of about this size, as they come, while so few reads are at the device;
// where there are more, the device has enough to do meanwhile and the pieces would only be more operations.
inline constexpr std::uint64_t kReadPieceBytes = 512u << 10;
inline constexpr std::uint32_t kReadsInPieces = 4;

class Device final {
 public:
  struct Limits {
    std::uint32_t read_depth;
    std::uint32_t write_depth;
    std::int64_t hang_us;
  };
  // `out` is told once, when it leaves service.
  Device(io::Loop& loop, std::string path, Limits limits, std::function<void()> out)
      : loop_(loop), path_(std::move(path)), limits_(limits), out_(std::move(out)), lent_(loop.executor()) {}
  // Close was awaited, or the loop crashed.
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Executor& executor() const { return loop_.executor(); }
  const std::string& path() const { return path_; }

  // A new life with this file: nothing known of it, looked at and not in service yet. Nothing may be under
  // way.
  void Begin(io::File file);
  io::File& file() { return file_; }
  // In service from now on: it is looked at (asserted).
  void Enter();
  // Stays out of service for that, until Begin.
  void NotOpened(std::string why) { why_ = std::move(why); }
  // Lets go of the file; whether there was one. It is not in service, and nothing is under way.
  bool CloseFile();
  // Waits for what was lent to it.
  Task<void> Close() { return lent_.Close(); }

  bool in_service() const { return state_ == State::kServes; }
  bool out() const { return state_ == State::kOut; }
  const std::string& why() const { return why_; }
  // Where it is only looked at, nobody is told.
  void GoOut(std::string why);
  // One of the things that a device must not do twice.
  void FailedFor(std::string_view what, const Status& status);

  // The whole of it, or kIoError: of the device, or because it is out of service.
  // What is read or written is the device's until the task ends.
  Task<Status> Read(std::span<std::byte> into, std::uint64_t offset);
  // Tells of bytes that are there already while others of the same read are still on their way; maybe never,
  // and never of all of them.
  using Arrived = std::function<void(std::span<const std::byte> bytes)>;
  Task<Status> Read(std::span<std::byte> into, std::uint64_t offset, const Arrived& arrived);
  Task<Status> Write(std::span<const std::span<const std::byte>> pieces, std::uint64_t offset);
  Task<Status> Write(std::span<const std::byte> from, std::uint64_t offset);
  Task<Status> Sync();

  // The same of the first bytes of a buffer. Where the device goes out of service meanwhile it keeps the
  // buffer, which is then empty. A read that fails is tried once more: a path to the device may fail over,
  // and a medium need one more look, and of what the tier keeps for itself much depends on each read.
  Task<Status> Read(Buffer& into, std::size_t bytes, std::uint64_t offset);
  Task<Status> Write(Buffer& from, std::size_t bytes, std::uint64_t offset);
  // Of any memory that such a transfer of this device moves.
  template <class Memory>
  Task<Status> Lend(Memory& memory, Task<Status> transfer);

  // A record was not what was written there, or it was.
  void Bad();
  void Sound() {
    if (bad_in_row_ > 0 && ++sound_in_row_ >= kTrustReads) bad_in_row_ = 0;
  }
  // Takes it out when a transfer has been at it for longer than hang_us while the node ran: time in which
  // nobody ticked, as of a process that was stopped, says nothing of the device. So does a file that lost its
  // name.
  void Tick(Instant now);

  double EstimateUs(std::uint64_t bytes) const { return estimate_.Us(bytes, loop_.clock().Now()); }
  // Of writes, waiting and at the device.
  std::uint64_t queued_write_bytes() const { return queued_write_bytes_; }
  std::uint32_t in_flight() const { return at_[0] + at_[1] + at_[2]; }
  bool busy() const { return !flying_.empty() || waiting(); }

  struct Counts {
    std::uint64_t read_bytes = 0, written_bytes = 0, reads = 0, writes = 0, errors = 0, bad_records = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  enum class Kind : std::uint8_t { kRead, kWrite, kSync };
  enum class State : std::uint8_t { kOut, kLookedAt, kServes };
  // A transfer, in the frame of its task: waiting, then at the device.
  class Transfer final : public ListNode<Transfer> {
   public:
    Transfer(Device& device, Kind kind, std::uint64_t bytes);
    ~Transfer();

    Device& device;
    const Kind kind;
    const std::uint64_t bytes;
    Event go;
    bool flying = false;
    bool refused = false;
    Instant began;
    std::int64_t began_watched_us = 0;  // of watched_us_
    Estimate::Expected expected;
  };
  // Between who waits for a transfer and the device, which keeps the memory for as long as it has it.
  struct Loan : ListNode<Loan> {
    Event over;  // the transfer has ended, or the device is out of service
    bool ended = false;
    Status status;
    std::shared_ptr<void> memory;
  };

  bool waiting() const { return !waiting_[0].empty() || !waiting_[1].empty(); }
  bool MayGo(const Transfer& transfer) const;
  void StartWaiting();
  void Launch(Transfer& transfer);
  // The transfer is no longer at the device; what its caller is told.
  Status Ended(Transfer& transfer, Status status);
  void Land(Transfer& transfer);
  bool Stood(Instant now) const { return ticked_ != Instant() && now.UsSince(ticked_) > kStoodUs; }
  Task<Status> Admit(Transfer& transfer);
  Task<Status> ReadFile(std::span<std::byte> into, std::uint64_t offset);
  Task<Status> ReadPiece(std::span<std::byte> into, std::uint64_t offset, const Arrived& arrived);
  Task<Status> ReadTwice(std::span<std::byte> into, std::uint64_t offset);
  Task<Status> SyncFile();
  Task<void> Follow(std::shared_ptr<Loan> loan, Task<Status> transfer);
  std::shared_ptr<Loan> Lent(Task<Status> transfer);
  Task<void> Pause();
  Status OutStatus() const;

  io::Loop& loop_;
  const std::string path_;
  const Limits limits_;
  const std::function<void()> out_;
  io::File file_;
  bool named_ = false;  // the file was, when it came
  State state_ = State::kOut;
  std::string why_ = "it was not opened";
  List<Transfer> waiting_[2];  // reads, writes
  List<Transfer> flying_;      // oldest first
  List<Loan> loans_;           // that somebody waits for
  Instant ticked_;
  Instant stood_until_;              // when it last had
  std::int64_t watched_us_ = 0;      // that passed between ticks, each gap up to kMaxTickGapUs
  std::uint32_t at_[3] = {};         // the device, by kind
  std::uint64_t read_bytes_at_ = 0;  // the device
  std::uint64_t queued_write_bytes_ = 0;
  std::uint32_t errors_in_row_[3] = {};
  std::uint32_t bad_in_row_ = 0;
  std::uint32_t sound_in_row_ = 0;
  Estimate estimate_;
  Counts counts_;
  TaskGroup lent_;  // last: its tasks use the others
};

template <class Memory>
Task<Status> Device::Lend(Memory& memory, Task<Status> transfer) {
  const std::shared_ptr<Loan> loan = Lent(std::move(transfer));
  co_await loan->over.Wait();
  if (!loan->ended) loan->memory = std::make_shared<Memory>(std::move(memory));
  co_return loan->status;
}

}  // namespace cistern::flash
