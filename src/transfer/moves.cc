// SPDX-License-Identifier: Apache-2.0
#include "transfer/moves.h"

#include <algorithm>
#include <utility>

#include "client/extents.h"

namespace cistern::transfer {
namespace {

// Blocks of a batch that begins at `next`: at least one.
std::size_t BatchOf(const PageMove& move, std::size_t next) {
  const std::uint64_t fit = std::max<std::uint64_t>(Transfers::kBatchBytes / move.pages->part_bytes(), 1);
  // Small pages of many fragments would make long lists.
  constexpr std::size_t kMaxBlocks = 256;
  return std::min({move.keys->size() - next, static_cast<std::size_t>(fit), kMaxBlocks});
}

}  // namespace

// ---- load -----------------------------------------------------------------------------------------------

void LoadMove::Prepare(std::size_t count) {
  const std::size_t fragments = load_.pages->fragments();
  pieces_.resize(count * fragments);
  ranges_.resize(count);
  reads_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::span<std::span<std::byte>> pieces = std::span(pieces_).subspan(i * fragments, fragments);
    load_.pages->PiecesOf(load_.page_ids[next_ + i], pieces);
    ranges_[i] = ReadRange{.part = load_.part, .bytes = load_.pages->part_bytes(), .pieces = pieces};
    reads_[i] =
        BlockRead{.key = (*load_.keys)[next_ + i], .group = load_.group, .ranges = std::span(&ranges_[i], 1)};
  }
}

Step LoadMove::Go(const Leave& leave) {
  if (!reading_.empty() && reading_.front().ticket.ready()) return Finish();
  if (next_ < load_.keys->size() && reading_.size() < kBatchesAhead && leave.may_begin) return Begin(leave);
  return finished_ == load_.keys->size() ? Step::kDone : Step::kWaits;
}

Step LoadMove::Begin(const Leave& leave) {
  if (next_ == 0 && leave.worth_us < 0) {
    done_.message = "it had not begun when worth_us had passed";
    return Step::kDone;
  }
  const std::size_t count = BatchOf(load_, next_);
  Prepare(count);
  const std::int64_t worth_us = std::max<std::int64_t>(leave.worth_us, 0);
  reading_.push_back(
      {store_.Read(load_.ns, reads_,
                   {.deadline_us = leave.deadline_us, .worth_us = worth_us, .touch = load_.touch}),
       next_, count});
  next_ += count;
  return reading_.front().ticket.ready() ? Finish() : Step::kMoved;
}

Step LoadMove::Finish() {
  Batch batch = std::move(reading_.front());
  reading_.pop_front();
  Result<ReadResult> result = batch.ticket.Wait();
  if (!result) {
    reading_.clear();
    done_.message = result.error().message();
    std::fill(done_.outcomes.begin() + static_cast<std::ptrdiff_t>(batch.first), done_.outcomes.end(),
              result.error().code());
    return Step::kDone;
  }
  for (std::size_t i = 0; i < batch.count; ++i) {
    done_.outcomes[batch.first + i] = result->outcomes[i];
    if (result->outcomes[i] == Code::kOk) copied_ += load_.pages->part_bytes();
  }
  done_.moved_bytes +=
      static_cast<std::uint64_t>(std::count(result->outcomes.begin(), result->outcomes.end(), Code::kOk)) *
      load_.pages->part_bytes();
  finished_ += batch.count;
  return finished_ == load_.keys->size() ? Step::kDone : Step::kMoved;
}

void LoadMove::Stop(Code code) {
  reading_.clear();
  std::fill(done_.outcomes.begin() + static_cast<std::ptrdiff_t>(finished_), done_.outcomes.end(), code);
}

// ---- save -----------------------------------------------------------------------------------------------

Step SaveMove::Go(const Leave& leave) {
  const bool answered = CollectAnswers();
  if (next_ < save_.keys->size()) {
    const std::size_t count = std::min(BatchOf(save_, next_), most_at_once_);
    if (leave.may_begin && StagingMayBeFree(leave) && budget_.Take(count * save_.pages->part_bytes()))
      return WriteBatch(count, leave);
    return answered ? Step::kMoved : Step::kWaits;
  }
  if (written_.empty()) return Step::kDone;
  return answered ? Step::kMoved : Step::kWaits;
}

bool SaveMove::CollectAnswers() {
  bool any = false;
  while (!written_.empty() && written_.front().ticket.ready()) {
    Written written = std::move(written_.front());
    written_.pop_front();
    Take(written.ticket.Wait(), written.first, written.count);
    budget_.Give(written.bytes);
    any = true;
  }
  return any;
}

void SaveMove::Take(const Result<WriteResult>& result, std::size_t first, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const WriteOutcome outcome = result ? result->outcomes[i] : WriteOutcome{.code = result.error().code()};
    done_.outcomes[first + i] = outcome.code;
    done_.states[first + i] = outcome.state;
    if (outcome.code == Code::kOk) done_.moved_bytes += save_.pages->part_bytes();
  }
  if (done_.message.empty()) done_.message = result ? result->message : std::string(result.error().message());
}

bool SaveMove::StagingMayBeFree(const Leave& leave) const {
  return !refusal_ || budget_.given() != refusal_->given || leave.deadline_us <= refusal_->ask_again_us;
}

// A write would wait for it until its deadline, and with it the thread, which has others to report and may be
// told to end. What is given back here is the write's that follows.
Status SaveMove::AskForStaging(std::size_t count, const Leave& leave) {
  Result<Staging> staging = store_.AllocateStaging(
      count * client::Extents::Rounded(save_.pages->part_bytes()), std::min(leave.deadline_us, kStagingUs));
  return staging ? Status() : std::move(staging.error());
}

// There is room again when writes under way end, this save's or another's, or when other sessions give theirs
// back: a save whose turn has come late is none that failed.
Step SaveMove::Refused(Status busy, std::size_t count, const Leave& leave) {
  // A small node has less staging than a batch takes.
  if (count > 1 && !budget_.in_use()) {
    most_at_once_ = count / 2;
    return Step::kMoved;
  }
  refusal_ = Refusal{.message = std::string(busy.message()),
                     .given = budget_.given(),
                     .ask_again_us = leave.deadline_us - kAskAgainUs};
  return Step::kWaits;
}

Step SaveMove::WriteBatch(std::size_t count, const Leave& leave) {
  const std::size_t fragments = save_.pages->fragments();
  const std::uint64_t bytes = count * save_.pages->part_bytes();
  Status staging = AskForStaging(count, leave);
  if (staging.code() == Code::kTooLate || staging.code() == Code::kBusy) {
    budget_.Return(bytes);
    return staging.code() == Code::kBusy ? Refused(std::move(staging), count, leave) : Step::kWaits;
  }
  std::vector<std::span<std::byte>> pieces(count * fragments);
  std::vector<std::span<const std::byte>> sources(pieces.size());
  std::vector<BlockWrite> writes(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t block = next_ + i;
    save_.pages->PiecesOf(save_.page_ids[block], std::span(pieces).subspan(i * fragments, fragments));
    writes[i] = BlockWrite{.key = (*save_.keys)[block],
                           .parent = save_.parents[block],
                           .group = save_.group,
                           .part = save_.part,
                           .pieces = std::span(sources).subspan(i * fragments, fragments)};
    if (!save_.put_ids.empty()) writes[i].put_id = save_.put_ids[block];
  }
  std::copy(pieces.begin(), pieces.end(), sources.begin());
  Ticket<WriteResult> ticket = store_.Write(save_.ns, writes,
                                            {.ttl_s = save_.ttl_s,
                                             .held = save_.held,
                                             .conversation = save_.conversation,
                                             .deadline_us = leave.deadline_us});
  if (ticket.id() != 0) {  // the node has it, and the pages are copied
    refusal_.reset();
    written_.push_back({std::move(ticket), next_, count, bytes});
    next_ += count;
    copied_ += bytes;
    return Step::kMoved;
  }
  budget_.Return(bytes);
  Result<WriteResult> refused = ticket.Wait();
  if (!refused && refused.error().code() == Code::kBusy)
    return Refused(std::move(refused.error()), count, leave);
  Take(refused, next_, count);
  if (!refused) {
    std::fill(done_.outcomes.begin() + static_cast<std::ptrdiff_t>(next_), done_.outcomes.end(),
              refused.error().code());
    next_ = save_.keys->size();
    return Step::kMoved;
  }
  next_ += count;
  return Step::kMoved;
}

void SaveMove::Stop(Code code) {
  CollectAnswers();
  for (Written& written : written_) {
    std::fill_n(done_.outcomes.begin() + static_cast<std::ptrdiff_t>(written.first), written.count, code);
    budget_.Abandon(std::move(written.ticket), written.bytes);
  }
  written_.clear();
  if (refusal_ && done_.message.empty()) done_.message = std::move(refusal_->message);
  std::fill(done_.outcomes.begin() + static_cast<std::ptrdiff_t>(next_), done_.outcomes.end(), code);
  next_ = save_.keys->size();
}

}  // namespace cistern::transfer
