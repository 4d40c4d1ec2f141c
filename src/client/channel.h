// SPDX-License-Identifier: Apache-2.0
// A client's end of its session: the shared mappings, the rings, the calls in flight, and waiting for them.
// Shared by the client, its tickets, its leases and its staging, so that what they point into stays mapped;
// when the last of them goes, the session is unmapped.
//
// Threads: one mutex covers submitting and collecting. One waiter at a time looks at the completion ring and
// sleeps for it; the others wait for what it collects. Reading shared memory takes no lock.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "arena/reader.h"
#include "arena/words.h"
#include "cistern/store.h"
#include "client/connection.h"
#include "client/extents.h"
#include "client/fork_mark.h"
#include "client/near_node.h"
#include "wire/protocol.h"

namespace cistern::client {

// How long a waiter polls before it sleeps: as long as waking a sleeping core takes, because a waiter that
// sleeps meanwhile pays a second wake.
inline constexpr std::int64_t kSpinUs = 250;

class Channel;

// What a call submits besides its arguments.
struct Request {
  wire::Op op = wire::Op::kNone;
  std::uint16_t flags = 0;
  std::uint32_t namespace_slot = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::int64_t deadline_ns = 0;
  // The node answers at its deadline with what was done by then: it is told an earlier one, so that this
  // answer comes by the call's.
  bool answered_late = false;
  std::int64_t grace_ns = 0;  // how much longer than the deadline the answer is waited for
  bool polled = true;         // Poll gives its id: it is a ticket's
};

// The deadline that the node is told of such a call: 10 ms before the call's own, or an eighth of the time
// that is left where that is less.
std::int64_t NodeDeadlineNs(std::int64_t deadline_ns, std::int64_t now_ns);

// One of the calls in flight, with its room in the argument area. Move-only; one that goes away before its
// answer gives the answer up, and a lease that it brings is released.
class Call final {
 public:
  Call() = default;
  Call(Call&& other) noexcept : channel_(std::move(other.channel_)), place_(other.place_) {
    other.channel_ = nullptr;
  }
  Call& operator=(Call&& other) noexcept;
  ~Call();

  // Room for arguments; the reply comes to the same place.
  std::span<std::byte> room() const;
  // `keep` stays until the node has completed the call, given up or not. Before it the arguments were
  // written.
  Status Submit(const Request& request, std::uint64_t args_bytes, std::shared_ptr<void> keep = nullptr);
  // As a ticket has them. Wait gives the completion, whatever its code: kTooLate, kGone and kDenied come as
  // errors when there is none.
  bool Ready();
  Result<wire::Completion> Wait();
  // The same of a completion that is ok; what another one says is the error.
  Result<wire::Completion> Answer();
  std::uint64_t id() const;
  // After Wait: the reply's bytes, as many as fit the room.
  std::span<const std::byte> reply(const wire::Completion& completion) const;
  // What a completion that is not ok says.
  Status Why(const wire::Completion& completion) const;

  const std::shared_ptr<Channel>& channel() const { return channel_; }

 private:
  friend class Channel;
  Call(std::shared_ptr<Channel> channel, std::uint32_t place) : channel_(std::move(channel)), place_(place) {}
  std::shared_ptr<Channel> channel_;
  std::uint32_t place_ = 0;
};

class Channel final : public std::enable_shared_from_this<Channel> {
 public:
  static Result<std::shared_ptr<Channel>> Open(Connection connection, NearNode near);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const Connection& connection() const { return connection_; }
  const arena::Reader<arena::RealWords>& reader() const { return reader_; }
  bool forked() const { return fork_mark_.forked(); }
  // Whether the node has a tier below memory.
  bool has_lower() const { return page().has_lower != 0; }
  // Empty where the node is another process.
  const NearNode& near() const { return near_; }
  bool takes_last() const { return page().takes_last != 0; }
  bool takes_hints() const { return page().takes_hints != 0; }
  bool takes_chain() const { return page().takes_chain != 0; }
  // Whether the node knows engines by name, and namespaces' labels.
  bool knows_engines() const { return EngineState() != 0; }
  // Whether a read that begins now is to find nothing, whatever is there.
  bool reads_off() const { return (EngineState() & wire::kEngineReadsOff) != 0; }
  bool takes_staging_back() const { return page().takes_staging_back != 0; }

  // Ok while this is the process that connected and the node is the one that it connected to.
  Status Check() const;
  // Whether a strict namespace may be read by a call that begins now: asks the kernel whether the node lives.
  bool ServesStrict() const;
  // Ends the session: every call from now on, and every one in flight, is kGone.
  void Close();

  // A place among the calls in flight and `bytes` of the argument area. kBusy: there is none.
  Result<Call> Reserve(std::uint64_t bytes);

  // A use of the record at `place`, for the eviction order. May be lost.
  void Touch(arena::Place place, std::uint64_t generation);
  // For the node's metrics.
  void NoteMatch(std::uint64_t asked_blocks, std::uint64_t indexed_blocks);
  void NoteReads(std::uint64_t blocks, std::uint64_t bytes);
  void NoteEngine(const EngineReport& report);
  void Release(std::uint64_t lease);
  // Tells the node of bodies that fail their seal, if there is room to.
  void ReportBad(std::uint32_t namespace_slot, std::uint64_t incarnation, const BlockKey& key,
                 std::uint16_t group);

  std::size_t Poll(std::vector<std::uint64_t>* ready);
  // A call is about to come: a core that sleeps begins to wake meanwhile, one that polls goes on. Without a
  // lock, and only a hint.
  void Announce();
  // The same for a call that is written at once: only a core that sleeps is told.
  void AnnounceToSleeper();
  int event_fd();

 private:
  friend class Call;
  enum class State : std::uint8_t { kFree, kReserved, kSubmitted, kDone };
  struct Slot {
    State state = State::kFree;
    bool given_up = false;
    bool taken = false;  // its completion was given to who waits
    bool polled = true;
    wire::Op op = wire::Op::kNone;
    std::uint64_t serial = 0;
    std::uint64_t offset = 0;  // of its room
    std::uint64_t bytes = 0;
    std::int64_t answer_by_ns = 0;
    wire::Completion completion;
    std::shared_ptr<void> keep;
  };
  using Lock = std::unique_lock<std::mutex>;
  // What is to be let go of after the lock: its destructors may come back here.
  using Kept = std::vector<std::shared_ptr<void>>;

  Channel(Connection connection, ForkMark fork_mark, Fd epoll, NearNode near);
  wire::SessionMemory& page() const {
    return *reinterpret_cast<wire::SessionMemory*>(connection_.session.data());
  }
  std::uint64_t EngineState() const {
    return std::atomic_ref(page().engine_state).load(std::memory_order_acquire);
  }
  std::uint64_t IdOf(std::uint32_t place) const { return slots_[place].serial << 8 | place; }

  // All below under the lock.
  std::uint32_t TakePlace(std::uint64_t bytes);
  void FreePlace(std::uint32_t place);
  void Push(std::uint32_t place, const Request& request, std::uint64_t args_bytes);
  bool Collect(Kept& kept);
  void Done(std::uint32_t place, const wire::Completion& completion, Kept& kept);
  void SendReleases();
  static std::uint64_t LeaseOf(const Slot& slot, const wire::Completion& completion);
  void MarkGone(Kept& kept);
  // For the first of the waiters: looks, then sleeps until something may have come or `until_ns`.
  void Lead(Lock& lock, Kept& kept, std::int64_t until_ns);
  // Whether the node's process lives, as the kernel said at most kAskNs ago. Costs a look at a coarse clock.
  bool NodeLives() const;
  bool HungUp() const;  // asks the kernel
  // `alone`: the signal of completions is this thread's; otherwise Poll has it, and this looks now and then.
  void SleepForCompletion(std::uint64_t seen, std::int64_t until_ns, bool alone);
  void MakeReady();  // the event descriptor, until Poll has looked; takes no lock

  bool CallReady(std::uint32_t place);
  Result<wire::Completion> WaitFor(std::uint32_t place);
  void GiveUp(std::uint32_t place);

  const Connection connection_;
  const ForkMark fork_mark_;
  const Fd epoll_;  // client_event, hang-up and the node's end together
  const NearNode near_;
  arena::RealWords words_;
  const arena::Reader<arena::RealWords> reader_;

  std::mutex mutex_;
  std::condition_variable collected_;
  std::array<Slot, wire::kRingEntries> slots_;
  std::vector<std::uint32_t> free_places_;
  std::bitset<wire::kRingEntries> unreported_;  // done, not yet given out by Poll
  Extents arguments_{wire::kArgumentBytes};
  std::uint64_t serial_ = 0;
  std::uint64_t submitted_ = 0;
  std::uint64_t collected_count_ = 0;
  bool led_ = false;                     // a waiter is looking at the ring
  bool alone_ = false;                   // and sleeps for the signal of completions itself
  std::vector<std::uint64_t> releases_;  // leases that found no place yet
  std::uint32_t releasing_ = 0;          // releases in flight
  mutable std::atomic<bool> gone_{false};
  mutable std::atomic<std::int64_t> asked_ns_{0};  // when the kernel was asked last; CLOCK_MONOTONIC_COARSE
  std::atomic<bool> events_{false};                // somebody has the event descriptor
  std::atomic<bool> unlooked_{false};              // it is ready until Poll looks
};

}  // namespace cistern::client
