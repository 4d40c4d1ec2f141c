// SPDX-License-Identifier: Apache-2.0
#include "client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/format.h"
#include "workload/content.h"

namespace cistern {

namespace {
constexpr std::size_t kStandingLeases = 2;
constexpr int kRequestsBeforeOldMapping = 4;
constexpr std::uint64_t kBatchBytes = 2u << 20;
constexpr std::int64_t kWaitUs = 300'000'000;

// A bound or a deadline was met, as the API allows: the caller goes without.
bool GoesWithout(Code code) { return code == Code::kBusy || code == Code::kTooLate || code == Code::kMiss; }
}  // namespace

Result<std::unique_ptr<Session>> OpenSession(const Daemon& daemon) {
  Result<Store> store = daemon.Connect();
  if (!store) return Error(store.error());
  auto session = std::make_unique<Session>(Session{std::move(*store), {}});
  for (std::uint32_t i = 0; i < kSpaces.size(); ++i) {
    Result<Namespace> ns = session->store.Attach(SpecOf(i), kWaitUs);
    if (!ns) return Error(ns.error());
    session->spaces.push_back(*ns);
  }
  return session;
}

Status ReadAndCompare(Session& session, std::uint32_t space, const BlockKey& key, std::vector<std::byte>& to,
                      std::uint64_t* wrong) {
  const std::uint64_t bytes = kSpaces[space].block_bytes;
  std::memset(to.data(), 0xa5, bytes);  // a hit that copies nothing shows
  ReadRange range{.bytes = bytes, .to = to.data()};
  BlockRead read{.key = key, .ranges = std::span(&range, 1)};
  ReadOptions options;
  options.touch = false;
  Result<ReadResult> result = session.store.Read(session.spaces[space], std::span(&read, 1), options).Wait();
  if (!result) return result.error();
  if (result->outcomes[0] != Code::kOk) return Status(result->outcomes[0]);
  *wrong = workload::CountWrongBytes(key, {to.data(), bytes});
  return Status();
}

Client::Client(const Daemon& daemon, Board& board, std::uint32_t number, std::uint64_t seed)
    : daemon_(daemon),
      board_(board),
      counts_(board.counts[number]),
      number_(number),
      seed_(seed),
      random_(SplitMix(seed) + number),
      buffer_(kMaxBlockBytes),
      own_memory_(kBatchBytes) {}

Status Client::Run(std::uint64_t rounds) {
  Result<std::unique_ptr<Session>> session = OpenSession(daemon_);
  if (!session) return session.error();
  session_ = std::move(*session);
  board_.connected.fetch_add(1);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    if (Status status = LoadUntilKilled(round); !status.ok()) return status;
    if (Status status = CompareAll(round); !status.ok()) return status;
    board_.compared[number_].store(round);
  }
  return Status();
}

Status Client::AwaitRound(const std::atomic<std::uint64_t>& number, std::uint64_t round,
                          const char* what) const {
  SystemClock clock;
  const Instant until = clock.Now().PlusUs(kWaitUs);
  while (number.load() < round) {
    if (clock.Now() > until) return Status(Code::kTooLate, what);
    poll(nullptr, 0, 1);
  }
  return Status();
}

Status Client::LoadUntilKilled(std::uint64_t round) {
  while (board_.killing.load() < round && board_.counting.load() < round) {
    Status status = DoRequest(*session_);
    if (status.ok()) continue;
    if (status.code() == Code::kGone && board_.killing.load() >= round) break;
    return Status(status.code(), Text("with the node alive: ", status.message()));
  }
  if (board_.counting.load() >= round) {
    if (Status status = TakeCensus(round); !status.ok()) return status;
  }
  return AwaitRound(board_.killed, round, "the node was to be killed and was not");
}

// What a match reports is reachable, whatever happens to the node from now on.
Status Client::TakeCensus(std::uint64_t round) {
  const auto owner = static_cast<std::uint32_t>((number_ + round) % kClients);
  ChainName name{.owner = owner};
  for (name.space = 0; name.space < kSpaces.size(); ++name.space) {
    for (name.chain = 0; name.chain < board_.chains(name.space); ++name.chain) {
      const std::array<BlockKey, kChainBlocks> keys = KeysOf(name, seed_);
      MatchOptions options;
      options.deadline_us = kWaitUs;
      Result<MatchResult> match = session_->store.Match(session_->spaces[name.space], keys, options).Wait();
      if (!match) return Status(match.error().code(), Text("at a census: ", match.error().message()));
      board_.resident(name).store(match->blocks);
      counts_.resident += match->blocks;
    }
  }
  board_.counted[number_].store(round);
  return Status();
}

// The clients share the owners out among themselves, another way each round.
Status Client::CompareAll(std::uint64_t round) {
  const auto owner = static_cast<std::uint32_t>((number_ + round) % kClients);
  // The old mapping is read while the successor recovers, or when it has already gone on with the same
  // memory. A reboot leaves none.
  const bool old_first = random_.Chance(0.5);
  auto compare_old = [&] {
    if (board_.reboot) return Status();
    CompareStandingViews(round);
    return CompareOwner(*session_, owner, true, counts_.with_old);
  };
  if (old_first) {
    if (Status status = compare_old(); !status.ok()) return status;
  }
  Result<std::unique_ptr<Session>> fresh = OpenSession(daemon_);
  if (!fresh) return Status(fresh.error().code(), Text("after a restart: ", fresh.error().message()));
  board_.restarted.store(round);
  if (Status status = CompareOwner(**fresh, owner, false, counts_.with_new); !status.ok()) {
    return Status(status.code(), Text("comparing after a restart: ", status.message()));
  }
  board_.found[number_].store(round);
  // Where puts may evict, nobody puts before all have seen what is there.
  if (board_.flash) {
    if (Status status = AwaitRound(board_.going_on, round, "the others do not come to their end");
        !status.ok()) {
      return status;
    }
  }
  if (!old_first) {
    std::vector<Standing> before = std::move(standing_);
    standing_.clear();
    for (int i = 0; i < kRequestsBeforeOldMapping; ++i) {
      if (Status status = DoRequest(**fresh); !status.ok()) return status;
    }
    std::swap(before, standing_);
    if (Status status = compare_old(); !status.ok()) return status;
    std::swap(before, standing_);
  } else {
    standing_.clear();
  }
  session_ = std::move(*fresh);
  return Status();
}

Status Client::FindByReads(Session& session, const ChainName& name, Findings& findings) {
  const std::array<BlockKey, kChainBlocks> keys = KeysOf(name, seed_);
  for (std::uint32_t i = 0; i < kChainBlocks; ++i) {
    if (BlockWord::KnownOf(board_.word(name, i).Load()) == Known::kUnknown) continue;
    Finding& finding = findings[i];
    finding.status = ReadAndCompare(session, name.space, keys[i], buffer_, &finding.wrong);
  }
  return Status();
}

Status Client::FindByLease(Session& session, const ChainName& name, Findings& findings) {
  const std::array<BlockKey, kChainBlocks> keys = KeysOf(name, seed_);
  std::array<BlockRef, kChainBlocks> refs;
  for (std::uint32_t i = 0; i < kChainBlocks; ++i) refs[i].key = keys[i];
  AcquireOptions options;
  options.lease_us = kMaxLeaseUs;
  Result<Lease> lease = session.store.Acquire(session.spaces[name.space], refs, options).Wait();
  if (!lease) return lease.error();
  for (std::uint32_t i = 0; i < kChainBlocks; ++i) {
    const View& view = lease->views()[i];
    findings[i].status = Status(view.code);
    if (view.data == nullptr) continue;
    findings[i].wrong = workload::CountWrongBytes(keys[i], {view.data, view.bytes});
  }
  if (!lease->still_good()) return Status(Code::kMiss, "the lease ended before its time");
  return Status();
}

Status Client::AskAgain(Session& session, const ChainName& name, std::uint32_t block, Finding& finding) {
  const BlockKey key = KeysOf(name, seed_)[block];
  SystemClock clock;
  const Instant until = clock.Now().PlusUs(kWaitUs);
  do {
    finding.status = ReadAndCompare(session, name.space, key, buffer_, &finding.wrong);
    const Code code = finding.status.code();
    if (code != Code::kBusy && code != Code::kTooLate) return Status();
  } while (clock.Now() < until);
  return Status(finding.status.code(), Text("block ", key.ToHex(), " has no answer for ", kWaitUs, " us"));
}

Status Client::CompareOwner(Session& session, std::uint32_t owner, bool old, Compared& compared) {
  ChainName name{.owner = owner};
  for (name.space = 0; name.space < kSpaces.size(); ++name.space) {
    for (name.chain = 0; name.chain < board_.chains(name.space); ++name.chain) {
      std::array<std::uint32_t, kChainBlocks> before;
      for (std::uint32_t i = 0; i < kChainBlocks; ++i) before[i] = board_.word(name, i).Load();
      Findings findings;
      const bool lease = board_.flash && !old && random_.Chance(0.5);
      Status all = lease ? FindByLease(session, name, findings) : FindByReads(session, name, findings);
      for (std::uint32_t i = 0; i < kChainBlocks; ++i) {
        if (BlockWord::KnownOf(before[i]) == Known::kUnknown) continue;
        Finding& finding = findings[i];
        if (!all.ok()) finding.status = all;
        const bool dropped = BlockWord::KnownOf(before[i]) >= Known::kDropping;
        if (!old && !dropped && !finding.status.ok() && GoesWithout(finding.status.code())) {
          ++compared.asked_again;
          if (Status status = AskAgain(session, name, i, finding); !status.ok()) return status;
        }
        const Status& status = finding.status;
        const bool gone = old && status.code() == Code::kGone;
        if (!status.ok() && !gone && !GoesWithout(status.code())) return status;
        ++compared.blocks;
        if (!status.ok()) {
          ++(dropped ? compared.dropped : compared.misses);
          compared.lost += board_.word(name, i).StillPublished(before[i]);
          // Nobody drops while all compare.
          compared.missed_resident += !old && !dropped && i < board_.resident(name).load();
          continue;
        }
        ++compared.hits;
        compared.bytes += kSpaces[name.space].block_bytes;
        counts_.wrong_bytes += finding.wrong;
        counts_.revived_drops += board_.word(name, i).StillDropped(before[i]);
      }
      if (!old) board_.resident(name).store(0);
    }
  }
  return Status();
}

// A restart ends all leases. Before it nobody writes, and what a lease says is right either way.
void Client::CompareStandingViews(std::uint64_t round) {
  for (const Standing& standing : standing_) {
    for (std::size_t i = 0; i < standing.lease.views().size(); ++i) {
      const View& view = standing.lease.views()[i];
      if (view.data == nullptr) continue;
      const bool restarted = board_.restarted.load() >= round;
      ++(restarted ? counts_.views_after_restart : counts_.views_after_kill);
      const std::uint64_t wrong = workload::CountWrongBytes(standing.keys[i], {view.data, view.bytes});
      if (!standing.lease.still_good()) continue;  // what was read through it is discarded
      ++(restarted ? counts_.good_after_restart : counts_.views_still_good);
      counts_.wrong_bytes += wrong;
    }
  }
}

ChainName Client::AnyChain(std::uint32_t owner) {
  ChainName name{.owner = owner};
  name.space = static_cast<std::uint32_t>(random_.Below(kSpaces.size()));
  name.chain = static_cast<std::uint32_t>(random_.Below(board_.chains(name.space)));
  return name;
}

Status Client::DoRequest(Session& session) {
  ++counts_.requests;
  const std::uint64_t dice = random_.Below(100);
  const auto anyone = static_cast<std::uint32_t>(random_.Below(kClients));
  std::uint32_t hits = 0;
  if (dice < 10) return DropChain(session, AnyChain(number_));
  if (dice < 30) return AcquireChain(session, AnyChain(anyone));
  if (dice < 50) return ReadChain(session, AnyChain(anyone), &hits);
  const ChainName name = AnyChain(number_);
  if (Status status = ReadChain(session, name, &hits); !status.ok()) return status;
  return WriteChain(session, name, hits);
}

Status Client::ReadChain(Session& session, const ChainName& name, std::uint32_t* leading_hits) {
  const std::array<BlockKey, kChainBlocks> keys = KeysOf(name, seed_);
  std::array<std::uint32_t, kChainBlocks> before;
  for (std::uint32_t i = 0; i < kChainBlocks; ++i) before[i] = board_.word(name, i).Load();
  MatchOptions options;
  options.hold_us = 1'000'000;
  Result<MatchResult> match = session.store.Match(session.spaces[name.space], keys, options).Wait();
  if (!match) return GoesWithout(match.error().code()) ? Status() : match.error();
  for (std::uint32_t i = 0; i < match->blocks; ++i) {
    counts_.revived_drops += board_.word(name, i).StillDropped(before[i]);
  }
  for (*leading_hits = 0; *leading_hits < match->blocks; ++*leading_hits) {
    const BlockWord& word = board_.word(name, *leading_hits);
    const std::uint32_t before_read = word.Load();
    std::uint64_t wrong = 0;
    Status status = ReadAndCompare(session, name.space, keys[*leading_hits], buffer_, &wrong);
    if (!status.ok()) return GoesWithout(status.code()) ? Status() : status;
    ++counts_.load_hits;
    counts_.wrong_bytes += wrong;
    counts_.revived_drops += word.StillDropped(before_read);
  }
  return Status();
}

// From staging of the node's making, or from our own memory.
Status Client::WriteChain(Session& session, const ChainName& name, std::uint32_t from) {
  const std::array<BlockKey, kChainBlocks> keys = KeysOf(name, seed_);
  const std::uint64_t block_bytes = kSpaces[name.space].block_bytes;
  const auto batch =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(kChainBlocks, kBatchBytes / block_bytes));
  std::byte* from_bytes = own_memory_.data();
  Staging staging;
  if (random_.Chance(0.5)) {
    Result<Staging> allocated = session.store.AllocateStaging(batch * block_bytes);
    if (!allocated) return GoesWithout(allocated.error().code()) ? Status() : allocated.error();
    staging = std::move(*allocated);
    from_bytes = staging.data();
  }
  for (std::uint32_t first = from; first < kChainBlocks; first += batch) {
    std::vector<BlockWrite> writes(std::min(batch, kChainBlocks - first));
    for (std::uint32_t i = 0; i < writes.size(); ++i) {
      std::span<std::byte> bytes(from_bytes + i * block_bytes, block_bytes);
      workload::FillContent(keys[first + i], bytes);
      writes[i].key = keys[first + i];
      if (first + i > 0) writes[i].parent = keys[first + i - 1];
      writes[i].data = bytes;
      board_.word(name, first + i).Set(Known::kWritten);
    }
    Result<WriteResult> result = session.store.Write(session.spaces[name.space], writes).Wait();
    if (!result) return GoesWithout(result.error().code()) ? Status() : result.error();
    for (std::uint32_t i = 0; i < writes.size(); ++i) {
      const WriteOutcome& outcome = result->outcomes[i];
      if (outcome.code == Code::kOk) {
        if (outcome.state == WriteOutcome::State::kPending) continue;
        board_.word(name, first + i).Set(Known::kPublished);
        board_.published.fetch_add(1);
        counts_.published += outcome.state == WriteOutcome::State::kPublished;
        continue;
      }
      ++counts_.refused;
      if (!GoesWithout(outcome.code)) return Status(outcome.code, result->message);
    }
  }
  return Status();
}

// A block takes all that descends from it along.
Status Client::DropChain(Session& session, const ChainName& name) {
  const std::array<BlockKey, kChainBlocks> keys = KeysOf(name, seed_);
  const auto from = static_cast<std::uint32_t>(random_.Below(kChainBlocks));
  auto set = [&](Known known) {
    for (std::uint32_t i = from; i < kChainBlocks; ++i) board_.word(name, i).Set(known);
  };
  set(Known::kDropping);
  Result<std::uint64_t> dropped =
      session.store.Drop(session.spaces[name.space], std::span(&keys[from], 1)).Wait();
  if (!dropped) return GoesWithout(dropped.error().code()) ? Status() : dropped.error();
  set(Known::kDropped);
  ++counts_.drops;
  return Status();
}

Status Client::AcquireChain(Session& session, const ChainName& name) {
  Standing standing{.keys = KeysOf(name, seed_)};
  std::array<BlockRef, kChainBlocks> refs;
  std::array<std::uint32_t, kChainBlocks> before;
  for (std::uint32_t i = 0; i < kChainBlocks; ++i) {
    refs[i].key = standing.keys[i];
    before[i] = board_.word(name, i).Load();
  }
  AcquireOptions options;
  options.lease_us = kMaxLeaseUs;
  Result<Lease> lease = session.store.Acquire(session.spaces[name.space], refs, options).Wait();
  if (!lease) return GoesWithout(lease.error().code()) ? Status() : lease.error();
  ++counts_.acquires;
  std::uint64_t wrong = 0, revived = 0;
  for (std::uint32_t i = 0; i < lease->views().size(); ++i) {
    const View& view = lease->views()[i];
    if (view.data == nullptr) continue;
    wrong += workload::CountWrongBytes(standing.keys[i], {view.data, view.bytes});
    revived += board_.word(name, i).StillDropped(before[i]);
  }
  if (lease->still_good()) {
    counts_.wrong_bytes += wrong;
    counts_.revived_drops += revived;
  }
  standing.lease = std::move(*lease);
  if (standing_.size() == kStandingLeases) standing_.erase(standing_.begin());
  standing_.push_back(std::move(standing));
  return Status();
}

}  // namespace cistern
