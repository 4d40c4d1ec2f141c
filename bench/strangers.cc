// SPDX-License-Identifier: Apache-2.0
#include "strangers.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <thread>

#include "base/fd.h"
#include "base/format.h"
#include "base/random.h"
#include "base/random_bytes.h"
#include "child.h"
#include "client/connection.h"
#include "wire/protocol.h"

namespace cistern {
namespace {

constexpr std::uint64_t kBlockBytes = 64u << 10;
constexpr std::size_t kKeysPerCall = 8192;
constexpr std::uint64_t kAtOnce = 16;  // blocks of a call that puts

BlockKey NumberedKey(std::uint64_t number) {
  BlockKey key;
  key.length = 32;
  FillRandom(~number, std::as_writable_bytes(std::span(key.bytes)));
  return key;
}

NamespaceSpec SpecOfOwn(std::string value) {
  NamespaceSpec spec;
  spec.fields = {{"stranger", std::move(value)}};
  spec.groups = {{.name = "all"}};
  return spec;
}

// A session whose memory is written without the client's care.
class RawSession {
 public:
  static std::optional<RawSession> Open(const ConnectOptions& options) {
    Result<client::Connection> connection = client::ConnectToNode(options);
    if (!connection) return std::nullopt;
    return RawSession(std::move(*connection));
  }
  wire::SessionMemory& page() { return *reinterpret_cast<wire::SessionMemory*>(connection_.session.data()); }
  const client::Connection& connection() const { return connection_; }

  void Wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] ssize_t ignored = write(connection_.core_event.get(), &one, sizeof(one));
  }
  // Into the ring, where it has room.
  bool Push(const wire::Submission& entry) {
    const std::uint64_t taken = std::atomic_ref(page().taken).load();
    if (page().submitted - taken >= wire::kRingEntries) return false;
    page().submissions[page().submitted % wire::kRingEntries] = entry;
    std::atomic_ref(page().submitted).fetch_add(1);
    if (std::atomic_ref(page().core_sleeps).load() != 0) Wake();
    return true;
  }
  bool Ended() const {
    char byte;
    return recv(connection_.socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

 private:
  explicit RawSession(client::Connection connection) : connection_(std::move(connection)) {}
  client::Connection connection_;
};

wire::Submission AnyCall(std::uint64_t number) {
  wire::Submission entry;
  entry.op = number % 2 == 0 ? wire::Op::kStatus : wire::Op::kRelease;
  entry.a = number;
  entry.deadline_ns = client::DeadlineNs(10'000'000);
  entry.reply_offset = wire::kArgumentBytes / 2;
  entry.reply_bytes = wire::kArgumentBytes / 2;
  return entry;
}

void NeverCollects(const StrangerTask& task) {
  std::optional<RawSession> session = RawSession::Open(task.connect);
  task.begun();
  for (std::uint64_t i = 0; session && task.go_on(); ++i)
    if (!session->Push(AnyCall(i))) std::this_thread::yield();
}

// Each of its sessions ends for what stands in its ring.
void Forges(const StrangerTask& task) {
  Random random(5);
  for (std::uint64_t round = 0; task.go_on(); ++round) {
    std::optional<RawSession> session = RawSession::Open(task.connect);
    if (round == 0) task.begun();
    if (!session) continue;
    wire::Submission entry = AnyCall(round);
    switch (round % 4) {
      case 0:
        entry.args_offset = wire::kArgumentBytes;
        entry.args_bytes = 1;
        break;
      case 1: entry.reply_bytes = UINT32_MAX; break;
      case 2: entry.op = static_cast<wire::Op>(random.Next()); break;  // is answered; the next ends it
      default: break;
    }
    session->Push(entry);
    std::atomic_ref(session->page().submitted).fetch_add(2 * wire::kRingEntries);
    session->Wake();
    while (!session->Ended() && task.go_on()) std::this_thread::yield();
  }
}

void ConnectsAndSaysNothing(const StrangerTask& task) {
  constexpr std::size_t kOpen = 256;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, task.connect.socket.data(),
              std::min(task.connect.socket.size(), sizeof(address.sun_path) - 1));
  std::deque<Fd> open;
  bool told = false;
  while (task.go_on()) {
    Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      std::this_thread::yield();  // the queue of those to be accepted is full
      continue;
    }
    open.push_back(std::move(fd));
    if (open.size() > kOpen) open.pop_front();
    if (!std::exchange(told, true)) task.begun();
  }
}

void AttachesWithoutEnd(const StrangerTask& task) {
  Result<Store> store = Store::Connect(task.connect);
  task.begun();
  for (std::uint64_t i = 0; store && task.go_on(); ++i) (void)store->Attach(SpecOfOwn(Text("list ", i)));
}

// All that honest ones read, and as much of its own as there is room for.
void LeasesAllForAsLongAsItMay(const StrangerTask& task) {
  Result<Store> store = Store::Connect(task.connect);
  if (!store) return task.begun();
  Result<Namespace> theirs = store->Attach(task.spec);
  Result<Namespace> own = store->Attach(SpecOfOwn("leases"));
  if (!theirs || !own) return task.begun();
  const std::vector<std::byte> body(kBlockBytes);
  std::deque<Lease> leases;
  const auto lease = [&](const Namespace& ns, std::span<const BlockKey> keys) {
    std::vector<BlockRef> refs;
    for (const BlockKey& key : keys) refs.push_back({key});
    Result<Lease> got = store->Acquire(ns, refs, {.lease_us = kMaxLeaseUs}).Wait();
    if (got) leases.push_back(std::move(*got));
    return got.has_value();
  };
  lease(*theirs, task.keys);
  bool told = false;
  for (std::uint64_t i = 0; task.go_on(); i += kAtOnce) {
    std::vector<BlockKey> keys;
    std::vector<BlockWrite> writes;
    for (std::uint64_t n = i; n < i + kAtOnce; ++n) keys.push_back(NumberedKey(n));
    for (const BlockKey& key : keys) writes.push_back({.key = key, .put_id = {8, i + 1}, .data = body});
    (void)store->Write(*own, writes).Wait();
    if (lease(*own, keys)) continue;
    if (!std::exchange(told, true)) task.begun();
    if (leases.size() > 1) leases.pop_front();  // and takes the next instead
  }
  if (!told) task.begun();
}

struct HeldPuts {
  std::vector<BlockWrite> writes;
  std::vector<PutId> ids;
};

HeldPuts SomePuts(std::span<const std::byte> body, std::uint64_t first) {
  HeldPuts puts;
  for (std::uint64_t i = first; i < first + kAtOnce; ++i) {
    puts.ids.push_back({7, i + 1});
    puts.writes.push_back({.key = NumberedKey(i), .put_id = puts.ids.back(), .data = body});
  }
  return puts;
}

void TakesStagingAndLeavesPutsPending(const StrangerTask& task) {
  Result<Store> store = Store::Connect(task.connect);
  if (!store) return task.begun();
  Result<Namespace> own = store->Attach(SpecOfOwn("pending"));
  if (!own) return task.begun();
  const std::vector<std::byte> body(16u << 10);
  bool told = false;
  std::vector<Staging> taken;
  for (std::uint64_t i = 0; task.go_on(); i += kAtOnce) {
    const HeldPuts puts = SomePuts(body, i);
    Result<WriteResult> result = store->Write(*own, puts.writes, {.held = true}).Wait();
    const bool full =
        !result || std::ranges::any_of(result->outcomes, [](auto& one) { return one.code != Code::kOk; });
    if (!full) continue;
    // Now all staging that there is, and on.
    Result<Staging> more = store->AllocateStaging(1u << 20);
    if (more) taken.push_back(std::move(*more));
    if (!more && !std::exchange(told, true)) task.begun();
  }
  if (!told) task.begun();
}

void FillsItsEvents(const StrangerTask& task) {
  std::optional<RawSession> session = RawSession::Open(task.connect);
  task.begun();
  if (!session) return;
  const int event = session->connection().core_event.get();
  fcntl(session->connection().client_event.get(), F_SETFL, 0);
  std::atomic_ref(session->page().client_sleeps).store(1);
  const std::uint64_t full = UINT64_MAX - 1;
  for (std::uint64_t i = 0; task.go_on(); ++i) {
    // Not blocking only while this writes: the node's flags are the same file's.
    fcntl(event, F_SETFL, O_NONBLOCK);
    [[maybe_unused]] ssize_t ignored = write(event, &full, sizeof(full));
    ignored = write(session->connection().client_event.get(), &full, sizeof(full));
    fcntl(event, F_SETFL, 0);
    session->page().collected = std::atomic_ref(session->page().completed).load();
    if (session->page().submitted - std::atomic_ref(session->page().taken).load() < wire::kRingEntries) {
      session->page().submissions[session->page().submitted % wire::kRingEntries] = AnyCall(i);
      std::atomic_ref(session->page().submitted).fetch_add(1);
    }
    std::uint64_t count = 0;
    fcntl(event, F_SETFL, O_NONBLOCK);
    if (i % 16 == 15) ignored = read(event, &count, sizeof(count));
  }
}

void SendsTheLargestCalls(const StrangerTask& task) {
  constexpr int kThreads = 3;
  std::vector<BlockRef> refs;
  std::vector<BlockKey> keys;
  for (std::size_t i = 0; i < kKeysPerCall; ++i) {
    keys.push_back(task.keys.empty() ? NumberedKey(i) : task.keys[i % task.keys.size()]);
    refs.push_back({keys.back()});
  }
  std::vector<std::thread> threads;
  std::atomic<int> begun = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      Result<Store> store = Store::Connect(task.connect);
      Result<Namespace> ns = store ? store->Attach(task.spec) : Result<Namespace>(Error(store.error()));
      if (++begun == kThreads) task.begun();
      while (ns && task.go_on()) {
        Ticket<Lease> views = store->Acquire(*ns, refs, {.lease_us = kMaxLeaseUs});
        Ticket<std::uint32_t> touched = store->Touch(*ns, keys);
        (void)store->Match(*ns, keys, {.hold_us = 1'000'000}).Wait();
        (void)views.Wait();
        (void)touched.Wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Whatever is busy is asked for again at once.
void RetriesInASpin(const StrangerTask& task) {
  Result<Store> store = Store::Connect(task.connect);
  if (!store) return task.begun();
  Result<Namespace> own = store->Attach(SpecOfOwn("spin"));
  if (!own) return task.begun();
  std::vector<Staging> taken;
  while (taken.size() < 1000) {
    Result<Staging> more = store->AllocateStaging(1u << 20);
    if (!more) break;
    taken.push_back(std::move(*more));
  }
  task.begun();
  const BlockKey key = NumberedKey(1);
  while (task.go_on()) {
    (void)store->AllocateStaging(1u << 20);
    // More calls than a session may have in flight.
    std::vector<Ticket<std::uint32_t>> tickets;
    for (std::uint32_t i = 0; i < wire::kRingEntries + 16; ++i)
      tickets.push_back(store->Touch(*own, std::span(&key, 1)));
    for (Ticket<std::uint32_t>& ticket : tickets) (void)ticket.Wait();
  }
}

void DropsInALoop(const StrangerTask& task) {
  Result<Store> store = Store::Connect(task.connect);
  if (!store) return task.begun();
  Result<Namespace> own = store->Attach(SpecOfOwn("drops"));
  task.begun();
  const std::vector<std::byte> body(4096);
  for (std::uint64_t i = 0; own && task.go_on(); ++i) {
    const BlockKey key = NumberedKey(i % 8);
    (void)store->Put(*own, key, std::nullopt, body);
    (void)store->Drop(*own, std::span(&key, 1)).Wait();
    if (i % 16 == 15) (void)store->DropNamespace(*own).Wait();
    if (i % 16 == 15) own = store->Attach(SpecOfOwn("drops"));
  }
}

void PutsAndAbandons(const StrangerTask& task) {
  Result<Store> store = Store::Connect(task.connect);
  if (!store) return task.begun();
  Result<Namespace> own = store->Attach(SpecOfOwn("abandons"));
  task.begun();
  const std::vector<std::byte> body(4096);
  for (std::uint64_t i = 0; own && task.go_on(); i += kAtOnce) {
    const HeldPuts puts = SomePuts(body, i);
    (void)store->Write(*own, puts.writes, {.held = true}).Wait();
    (void)store->Abandon(*own, puts.ids).Wait();
  }
}

// Sessions whose descriptors a child keeps open: no hang-up comes.
void LeavesChildrenWithItsSessions(const StrangerTask& task) {
  constexpr std::size_t kChildren = 8;
  std::deque<Child> children;
  bool told = false;
  while (task.go_on()) {
    ConnectOptions options = task.connect;
    options.staging_bytes = 4096;
    Result<client::Connection> session = client::ConnectToNode(options);
    Result<Child> child = Child::Start([] {
      while (true) pause();
    });
    if (child) children.push_back(std::move(*child));
    if (children.size() > kChildren) children.pop_front();
    if (!std::exchange(told, true)) task.begun();
  }
}

}  // namespace

std::span<const StrangerKind> StrangerKinds() {
  static constexpr StrangerKind kKinds[] = {
      {"never_collects", "submits as fast as it is taken and collects no completion", NeverCollects},
      {"forges", "one session after the other that ends for what stands in its ring", Forges},
      {"silent", "connects without end and says nothing", ConnectsAndSaysNothing},
      {"namespaces", "attaches new lists without end", AttachesWithoutEnd},
      {"leases", "leases all that there is for as long as a lease may be", LeasesAllForAsLongAsItMay},
      {"pending", "takes all staging and leaves puts pending", TakesStagingAndLeavesPutsPending},
      {"events", "fills the descriptors of its events and makes them blocking", FillsItsEvents},
      {"large_calls", "acquires, matches and touches 8,192 keys a call in three threads",
       SendsTheLargestCalls},
      {"spins", "asks again at once for what is busy", RetriesInASpin},
      {"drops", "puts and drops keys and namespaces in a loop", DropsInALoop},
      {"abandons", "puts and abandons in a loop", PutsAndAbandons},
      {"children", "leaves forked children with its sessions' descriptors", LeavesChildrenWithItsSessions},
  };
  return kKinds;
}

}  // namespace cistern
