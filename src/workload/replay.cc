// SPDX-License-Identifier: Apache-2.0
#include "workload/replay.h"

#include <algorithm>

#include "base/clock.h"
#include "base/format.h"
#include "workload/content.h"

namespace cistern::workload {

namespace {

constexpr std::uint64_t kProgressEvery = 64;  // requests

}  // namespace

NamespaceSpec ReplayNamespace(std::uint64_t block_bytes) {
  NamespaceSpec spec;
  spec.fields = {{"workload", "replay"}, {"block_bytes", Text(block_bytes)}};
  GroupSpec group;
  group.name = "full";
  group.part_bytes = {block_bytes};
  spec.groups = {group};
  spec.block_tokens = kTraceBlockTokens;
  return spec;
}

Replay::Replay(Store& store, const Namespace& ns, const ReplayOptions& options, ReplayReport& report)
    : store_(store),
      ns_(ns),
      options_(options),
      report_(report),
      buffer_(options.batch_blocks * options.block_bytes) {}

Replay::~Replay() = default;

Status Replay::Submit(const Request& request) {
  SystemClock clock;
  chain_.clear();
  for (std::uint64_t id : request.hash_ids) chain_.push_back(WorkloadKey(id, options_.seed));
  report_.requests.Add();
  report_.accesses.Add(chain_.size());
  report_.input_tokens.Add(request.input_tokens);

  const std::uint64_t now_ms = time_.Of(request);
  if (options_.time_ms != nullptr) options_.time_ms->store(now_ms, std::memory_order_release);
  MatchOptions match_options;
  if (options_.hold) match_options.hold_us = kMaxLeaseUs;
  match_options.partial = LastIsPartial(request);
  Instant start = clock.Now();
  Result<MatchResult> match = store_.Match(ns_, chain_, match_options).Wait();
  report_.match_ns.Record(static_cast<std::uint64_t>(clock.Now().NsSince(start)));
  if (!match) return match.error();

  const std::uint64_t hits_before = report_.hits.value();
  if (Status status = ReadHits(*match); !status.ok()) return status;
  const std::uint64_t hit_blocks = report_.hits.value() - hits_before;
  report_.hit_tokens.Add(std::min<std::uint64_t>(request.input_tokens, hit_blocks * kTraceBlockTokens));
  // What has gone since the match is computed and written as well.
  if (Status status = WriteMissing(hit_blocks); !status.ok()) return status;
  if (!chain_.empty()) {
    std::reverse(chain_.begin(), chain_.end());
    Result<std::uint32_t> touched = store_.Touch(ns_, chain_).Wait();
    if (!touched) return touched.error();
  }
  if (options_.progress && report_.requests.value() % kProgressEvery == 0) options_.progress(report_);
  return Status();
}

Status Replay::ReadHits(const MatchResult& match) {
  SystemClock clock;
  const std::uint32_t blocks = match.blocks;
  where_.clear();
  for (const MatchRun& run : match.runs) where_.insert(where_.end(), run.blocks, run.where);
  where_.resize(blocks, Where::kMemory);
  ReadOptions options;
  options.touch = false;  // order is by the touches at the request's end
  for (std::uint32_t first = 0; first < blocks; first += options_.batch_blocks) {
    const std::uint32_t count = std::min(options_.batch_blocks, blocks - first);
    std::vector<ReadRange> ranges(count);
    std::vector<BlockRead> reads(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      ranges[i] = ReadRange{.bytes = options_.block_bytes, .to = buffer_.data() + i * options_.block_bytes};
      reads[i] = BlockRead{.key = chain_[first + i], .ranges = std::span(&ranges[i], 1)};
    }
    Instant start = clock.Now();
    Result<ReadResult> result = store_.Read(ns_, reads, options).Wait();
    const auto took_ns = static_cast<std::uint64_t>(clock.Now().NsSince(start));
    if (!result) return result.error();
    report_.read_ns.Add(took_ns);
    report_.read_batch_ns.Record(took_ns);
    for (std::uint32_t i = 0; i < result->leading_hits; ++i) {
      std::span<const std::byte> bytes(buffer_.data() + i * options_.block_bytes, options_.block_bytes);
      report_.wrong_bytes.Add(CountWrongBytes(chain_[first + i], bytes));
      report_.hits_flash.Add(where_[first + i] == Where::kFlash);
      report_.hits_peer.Add(where_[first + i] == Where::kPeer);
    }
    const std::uint64_t bytes = result->leading_hits * options_.block_bytes;
    report_.hits.Add(result->leading_hits);
    report_.bytes_read.Add(bytes);
    report_.bytes_verified.Add(bytes);
    if (result->leading_hits < count) break;  // gone since the match: the rest would not count
  }
  return Status();
}

Status Replay::WriteMissing(std::uint64_t hits) {
  SystemClock clock;
  const auto size = static_cast<std::uint32_t>(chain_.size());
  const auto from = static_cast<std::uint32_t>(hits);
  if (from < size && staging_.data() == nullptr) {
    Result<Staging> staging = store_.AllocateStaging(options_.batch_blocks * options_.block_bytes);
    if (!staging) return staging.error();
    staging_ = std::move(*staging);
  }
  for (std::uint32_t first = from; first < size; first += options_.batch_blocks) {
    const std::uint32_t count = std::min(options_.batch_blocks, size - first);
    std::vector<BlockWrite> writes(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      std::span<std::byte> bytes(staging_.data() + i * options_.block_bytes, options_.block_bytes);
      FillContent(chain_[first + i], bytes);
      writes[i].key = chain_[first + i];
      if (first + i > 0) writes[i].parent = chain_[first + i - 1];
      writes[i].data = bytes;
    }
    Instant start = clock.Now();
    Result<WriteResult> result = store_.Write(ns_, writes).Wait();
    const auto took_ns = static_cast<std::uint64_t>(clock.Now().NsSince(start));
    if (!result) return result.error();
    report_.write_ns.Add(took_ns);
    report_.write_batch_ns.Record(took_ns);
    std::uint32_t written = 0;
    for (const WriteOutcome& outcome : result->outcomes) {
      if (outcome.code == Code::kBusy) report_.blocks_refused.Add();
      if (outcome.code != Code::kOk && outcome.code != Code::kBusy)
        return Status(outcome.code, result->message);
      written += outcome.code == Code::kOk;
    }
    report_.blocks_written.Add(written);
    report_.bytes_written.Add(written * options_.block_bytes);
    if (written < count) {  // the store holds no more of this chain
      report_.blocks_refused.Add(size - first - count);
      break;
    }
  }
  return Status();
}

Status ReplayAll(RequestSource& requests, Replay& replay, const std::function<bool()>& stop) {
  Request request;
  while (true) {
    if (stop != nullptr && stop()) return Status(Code::kGone, "the replay was interrupted");
    Result<bool> more = requests.Next(request);
    if (!more) return more.error();
    if (!*more) return Status();
    if (Status status = replay.Submit(request); !status.ok()) return status;
  }
}

}  // namespace cistern::workload
