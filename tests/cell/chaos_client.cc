// SPDX-License-Identifier: Apache-2.0
#include "chaos_client.h"

#include <poll.h>

#include <cstdio>

#include "base/format.h"

namespace cistern::chaos {
namespace {

constexpr std::uint32_t kTokens = 64;  // every fourth block of a chain is a sample

Result<Namespace> AttachTo(Store& store, bool strict) {
  NamespaceSpec spec;
  spec.fields = {{"name", "chaos"}};
  spec.strict = strict;
  spec.block_tokens = kTokens;
  spec.groups = {{.name = "all"}};
  return store.Attach(spec, kCallUs);
}

}  // namespace

void Client::Run() {
  while (!stops_) {
    if (!store_ && !Connect()) {
      poll(nullptr, 0, 5);
      continue;
    }
    const std::uint64_t what = random_.Below(100);
    const auto chain = static_cast<std::uint32_t>(random_.Below(kChains));
    const bool goes_on = what < 12 ? PutChain(chain) : what < 94 ? ReadChain(chain) : Drop(chain);
    if (!goes_on) store_.reset();
  }
}

// Once the node has joined: before that it serves what it has, whatever was dropped meanwhile.
bool Client::Connect() {
  if (!node_.runs()) return false;
  Result<Store> store = node_.daemon->Connect();
  if (!store) return false;
  const Result<std::string> says = store->StatusJson(kCallUs);
  if (!says || says->find("\"joined\":true") == std::string::npos) return false;
  for (const bool strict : {false, true}) {
    Result<Namespace> ns = AttachTo(*store, strict);
    if (!ns) return false;
    namespaces_[strict ? 1 : 0] = *ns;
  }
  store_.emplace(std::move(*store));
  return true;
}

bool Client::PutChain(std::uint32_t chain) {
  const auto end = static_cast<std::uint32_t>(1 + random_.Below(kBlocks));
  for (std::uint32_t block = 0; block < end; ++block) {
    const Header header{chain, block, board_.BeginPut()};
    const std::optional<BlockKey> parent =
        block == 0 ? std::nullopt : std::optional(KeyOf(seed_, chain, block - 1));
    const Status put = store_->Put(NamespaceOf(chain), KeyOf(seed_, chain, block), parent, BodyOf(header),
                                   {.deadline_us = kCallUs});
    // One that failed may have been kept all the same: what is not known to be complete is never asked for.
    if (put.code() == Code::kGone) return false;
    if (!put.ok()) {
      ++counts_.refused;
      return true;
    }
    ++counts_.puts;
    board_.Completed(chain, block, header.put);
  }
  return true;
}

bool Client::ReadChain(std::uint32_t chain) {
  std::vector<BlockKey> keys;
  for (std::uint32_t block = 0; block < kBlocks; ++block) keys.push_back(KeyOf(seed_, chain, block));
  // Shared memory alone is asked where nothing is matched first, so also at a node that stands still.
  std::size_t count = kBlocks;
  std::size_t at_peers = 0;  // the last of them
  const bool matches = random_.Below(3) > 0;
  if (matches) {
    Result<MatchResult> match = store_->Match(NamespaceOf(chain), keys, {.deadline_us = 1'000'000}).Wait();
    if (!match) return match.error().code() != Code::kGone;
    count = match->blocks;
    for (const MatchRun& run : match->runs) at_peers += run.where == Where::kPeer ? run.blocks : 0;
  }
  if (count == 0) return true;
  const std::uint64_t acknowledged = board_.acknowledged();
  std::vector<std::vector<std::byte>> bodies(count, std::vector<std::byte>(BytesOf(chain)));
  std::vector<ReadRange> ranges(count);
  std::vector<BlockRead> reads(count);
  for (std::size_t i = 0; i < count; ++i) {
    ranges[i] = {.bytes = bodies[i].size(), .to = bodies[i].data()};
    reads[i] = {.key = keys[i], .ranges = std::span(&ranges[i], 1)};
  }
  static constexpr std::int64_t kUs[] = {3'000, 50'000, kCallUs, kCallUs};
  Result<ReadResult> read =
      store_->Read(NamespaceOf(chain), reads, {.deadline_us = kUs[random_.Below(matches ? 4 : 2)]}).Wait();
  if (!read) return read.error().code() != Code::kGone;
  counts_.reads += count;
  for (std::size_t i = 0; i < count; ++i) {
    if (read->outcomes[i] != Code::kOk) {
      ++counts_.misses;
      continue;
    }
    ++counts_.hits;
    if (IsStrict(chain)) ++counts_.strict_hits;
    if (i >= count - at_peers) ++counts_.peer_hits;
    Compare(chain, static_cast<std::uint32_t>(i), bodies[i], acknowledged);
  }
  return true;
}

void Client::Compare(std::uint32_t chain, std::uint32_t block, const std::vector<std::byte>& body,
                     std::uint64_t acknowledged) {
  Header header;
  std::memcpy(&header, body.data(), sizeof(header));
  if (header != Header{chain, block, header.put} || BodyOf(header) != body) {
    ++counts_.wrong;
    std::fprintf(stderr, "wrong bytes: %s\n",
                 Text("chain ", chain, " block ", block, " at node ", node_.id).c_str());
  } else if (board_.Gone(header, acknowledged)) {
    ++counts_.revived;
    std::fprintf(stderr, "revived: %s\n",
                 Text("chain ", chain, " block ", block, " put ", header.put, " at node ", node_.id).c_str());
  }
}

bool Client::Drop(std::uint32_t chain) {
  const auto block = static_cast<std::uint32_t>(random_.Below(kBlocks));
  std::vector<std::uint64_t> starts, pauses;
  for (const ChaosNode& node : nodes_) {
    starts.push_back(node.starts.load());
    pauses.push_back(node.pauses.load());
  }
  const auto taken = board_.BeginDrop(chain, block);
  const BlockKey key = KeyOf(seed_, chain, block);
  const Result<std::uint64_t> dropped = store_->Drop(NamespaceOf(chain), std::span(&key, 1), kCallUs).Wait();
  if (!dropped) {
    (dropped.error().code() == Code::kUnavailable ? counts_.unavailable : counts_.unacknowledged) += 1;
    return dropped.error().code() != Code::kGone;
  }
  if (!IsStrict(chain)) {
    const Result<bool> binds = BindsAll(starts, pauses);
    if (!binds || !*binds) return binds || binds.error().code() != Code::kGone;
  }
  ++(IsStrict(chain) ? counts_.strict_drops : counts_.drops);
  board_.Dropped(chain, block, taken);
  return true;
}

// Of a member that was alive and not in the view (it, its host or its link stood still) nothing is promised.
Result<bool> Client::BindsAll(const std::vector<std::uint64_t>& starts,
                              const std::vector<std::uint64_t>& pauses) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (pauses[i] % 2 == 1 || nodes_[i].pauses.load() != pauses[i]) return false;
  }
  const Result<std::string> cell = store_->CellJson(kCallUs);
  if (!cell) return Error(cell.error());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const bool lived = starts[i] % 2 == 1 && nodes_[i].starts.load() == starts[i];
    if (lived && cell->find(Text("\"id\":\"", nodes_[i].id, "\"")) == std::string::npos) return false;
  }
  return true;
}

}  // namespace cistern::chaos
