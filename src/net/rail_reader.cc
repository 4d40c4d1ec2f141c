// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "net/answer_code.h"
#include "net/rail.h"
#include "net/rail_message.h"

namespace cistern::net {
namespace {

// What one receive moves at most. The kernel writes to the same lines again and again, and who takes the
// bytes finds them in this core's cache.
constexpr std::size_t kReceiveBytes = 256u << 10;

}  // namespace

RailReader::RailReader(std::unique_ptr<Stream> stream, Fabric* fabric, Event* freed)
    : stream_(std::move(stream)),
      fabric_(fabric),
      freed_(freed),
      questions_(*stream_),
      came_(kReceiveBytes),
      fetches_(stream_->executor()) {
  run_ = Run();
  if (fabric_ != nullptr) fetches_.Spawn(Greet());
}

RailReader::~RailReader() {
  for (const std::shared_ptr<Batch>& batch : batches_) CISTERN_ASSERT(batch->sink == nullptr);
  for (const std::shared_ptr<Batch>& batch : parked_) CISTERN_ASSERT(batch->sink == nullptr);
  fetches_.Drop();
}

void RailReader::Close() { stream_->Close(); }

Encoder RailReader::BeginMessage(const RailBatchHead& head) {
  std::vector<std::byte>& message = questions_.unsent();
  const std::size_t at = message.size();
  message.resize(at + RailBatchHead::kBytes);
  head.Store(message.data() + at);
  return Encoder(message);
}

Task<Status> RailReader::Read(std::span<const ConstPiece> questions, RailSink& sink, Instant deadline) {
  if (!broken_.ok()) co_return broken_;
  if (outstanding() >= RailLimits::kBatches)
    co_return Status(Code::kBusy,
                     Text(stream_->peer(), ": ", outstanding(), " batches are outstanding on the rail, ",
                          "the limit is ", RailLimits::kBatches));
  if (questions.empty() || questions.size() > RailLimits::kBatchItems)
    co_return Status(Code::kInvalid, Text("a batch of ", questions.size(), " items: a rail takes 1 to ",
                                          RailLimits::kBatchItems));
  const std::int64_t left_us = deadline.UsSince(executor().Now());
  if (left_us <= 0)
    co_return Status(Code::kTooLate, Text(stream_->peer(), ": was not asked, the deadline had passed"));
  if (way_ == nullptr && !fabric_name_.empty() && executor().Now() >= fabric_again_) OpenWay();
  RailBatchHead head;
  head.magic = way_ == nullptr ? RailBatchHead::kQuestions : RailBatchHead::kPlaced;
  head.items = static_cast<std::uint32_t>(questions.size());
  head.id = RailBatchHead::kAnyOrder | ++last_id_;
  head.remaining_us = static_cast<std::uint32_t>(std::min(left_us, RailLimits::kBatchUs));
  for (const ConstPiece& question : questions) {
    if (question.size() > RailLimits::kQuestionBytes)
      co_return Status(Code::kInvalid, Text("a question of ", question.size(), " bytes: a rail takes ",
                                            RailLimits::kQuestionBytes));
    head.bytes += static_cast<std::uint32_t>(2 + question.size());
  }
  Encoder out = BeginMessage(head);
  for (const ConstPiece& question : questions) {
    out.U16(static_cast<std::uint16_t>(question.size()));
    out.Bytes(question);
  }

  // It outlives its place in the queue as long as it is waited for here.
  const auto made = std::make_shared<Batch>();
  Batch& batch = *made;
  batch.id = head.id;
  batch.items = head.items;
  batch.sink = &sink;
  batch.deadline = deadline;
  batches_.push_back(made);
  // Who dropped this task has dropped the sink.
  struct Waited {
    Batch& batch;
    ~Waited() { batch.sink = nullptr; }
  };
  const Waited waited{batch};
  fetches_.Spawn(SendQuestions());
  // While its items arrive, who receives them watches the deadline.
  if (!batch.done.is_set()) {
    const Status in_time = co_await batch.done.Wait(deadline);
    if (!in_time.ok() && !batch.answering)
      GiveUp(batch, Status(Code::kTooLate, Text(stream_->peer(), ": did not answer before the deadline")));
  }
  if (!batch.done.is_set()) (void)co_await batch.done.Wait();
  co_return batch.status;
}

// For all who share the rail: a question of which a part has gone cannot be taken back, and whoever asks it
// may have little time. Its failure is the rail's, which Run notices too.
Task<void> RailReader::SendQuestions() {
  if (std::exchange(sending_, true)) co_return;
  Status sent;
  while (sent.ok() && !questions_.unsent().empty())
    sent = co_await questions_.SendOnce(executor().Now().PlusUs(RailLimits::kStallUs));
  sending_ = false;
  if (!sent.ok()) stream_->Close();
}

Status RailReader::Late() const {
  return Status(Code::kTooLate, Text(stream_->peer(), ": did not answer in full before the deadline"));
}

void RailReader::GiveUp(Batch& batch, const Status& why) {
  RailSink* const sink = std::exchange(batch.sink, nullptr);
  if (sink == nullptr) return;
  for (std::uint32_t item = 0; item < batch.items; ++item) sink->End(item, why);
  batch.status = why;
  batch.done.Set();
}

Task<void> RailReader::Run() {
  Status status;
  while (status.ok()) {
    std::array<std::byte, RailBatchHead::kBytes> bytes;
    status = co_await Take(nullptr, bytes);
    if (!status.ok()) break;
    const RailBatchHead head = RailBatchHead::Load(bytes.data());
    if (head.magic == RailBatchHead::kFabric && fabric_ != nullptr) {
      status = co_await Greeted(head);
      continue;
    }
    if (head.magic == RailBatchHead::kVerdict) {
      status = co_await Judge(head);
      continue;
    }
    const auto at = std::ranges::find(batches_, head.id, [](const auto& batch) { return batch->id; });
    if (at == batches_.end() || head.magic != RailBatchHead::kAnswers || head.items != (*at)->items) {
      status = Status(Code::kGone, Text(stream_->peer(), ": answered what was not asked"));
      break;
    }
    status = co_await Answer(*at);
  }
  broken_ = std::move(status);
  stream_->Close();
  for (const std::shared_ptr<Batch>& batch : std::exchange(batches_, {})) GiveUp(*batch, broken_);
  for (const std::shared_ptr<Batch>& batch : std::exchange(parked_, {})) GiveUp(*batch, broken_);
  if (freed_ != nullptr) freed_->Pulse();
}

Task<Status> RailReader::Answer(std::shared_ptr<Batch> answered) {
  Batch& batch = *answered;
  batch.answering = true;
  batch.outcome.resize(batch.items);
  for (std::uint32_t item = 0; item < batch.items; ++item) {
    if (Status status = co_await ReceiveItem(batch, item); !status.ok()) co_return status;
  }
  if (!batch.placed.empty()) {
    std::erase(batches_, answered);
    parked_.push_back(answered);
    batch.answering = false;
    // Who waits for it looked at the deadline no more.
    if (executor().Now() >= batch.deadline) GiveUp(batch, Late());
    fetches_.Spawn(Fetch(std::move(answered)));
    co_return Status();
  }
  std::array<std::byte, RailLimits::kBatchItems> whole;
  if (Status status = co_await Take(&batch, std::span(whole).first(batch.items)); !status.ok())
    co_return status;
  std::erase(batches_, answered);
  EndItems(batch, whole);
  co_return Status();
}

void RailReader::EndItems(Batch& batch, std::span<const std::byte> whole) {
  if (freed_ != nullptr) freed_->Pulse();
  RailSink* const sink = std::exchange(batch.sink, nullptr);
  if (sink == nullptr) return;
  for (std::uint32_t item = 0; item < batch.items; ++item) {
    Status& status = batch.outcome[item];
    if (status.ok() && whole[item] != std::byte{1})
      status = Status(Code::kLapsed, Text(stream_->peer(), ": gave the slot to another record meanwhile"));
    sink->End(item, status);
  }
  batch.done.Set();
}

Task<Status> RailReader::ReceiveItem(Batch& batch, std::uint32_t item) {
  std::array<std::byte, RailItemHead::kBytes> bytes;
  if (Status status = co_await Take(&batch, bytes); !status.ok()) co_return status;
  const RailItemHead head = RailItemHead::Load(bytes.data());
  const Code code = CodeSaid(head.code);
  const bool refused = code != Code::kOk;
  const bool no_place = head.placed > 1 || (head.placed == 1 && (refused || fabric_ == nullptr));
  if (no_place || head.head_bytes > RailLimits::kHeadBytes || head.body_bytes > RailLimits::kBodyBytes ||
      (refused && (head.head_bytes > 0 || head.body_bytes > 0))) {
    co_return Status(Code::kGone, Text(stream_->peer(), ": answered with code ", static_cast<int>(head.code),
                                       ", ", head.head_bytes, " bytes of head and ", head.body_bytes,
                                       " of body, which no answer has"));
  }
  if (refused) {
    batch.outcome[item] = Status(code, Text(stream_->peer(), ": says ", CodeName(code)));
    co_return Status();
  }
  std::array<std::byte, RailItemHead::kPlaceBytes> place_bytes;
  if (head.placed == 1) {
    if (Status status = co_await Take(&batch, place_bytes); !status.ok()) co_return status;
  }
  std::vector<std::byte> described(head.head_bytes);
  if (Status status = co_await Take(&batch, described); !status.ok()) co_return status;
  if (batch.sink != nullptr) batch.outcome[item] = batch.sink->Begin(item, described, head.body_bytes);
  if (head.placed == 0) co_return co_await ReceiveBody(batch, item, head.body_bytes);
  batch.placed.resize(batch.items);
  Placed& placed = batch.placed[item];
  placed.place = {LoadAt<std::uint64_t>(place_bytes.data(), 0), LoadAt<std::uint64_t>(place_bytes.data(), 8)};
  placed.bytes = batch.sink != nullptr && batch.outcome[item].ok() ? head.body_bytes : 0;
  co_return Status();
}

Task<Status> RailReader::ReceiveBody(Batch& batch, std::uint32_t item, std::uint64_t bytes) {
  while (bytes > 0) {
    const Result<ConstPiece> came = co_await Next(&batch, bytes);
    if (!came) co_return came.error();
    bytes -= came->size();
    if (batch.sink != nullptr && batch.outcome[item].ok() && !came->empty()) batch.sink->Take(item, *came);
  }
  co_return Status();
}

Task<Status> RailReader::Take(Batch* batch, std::span<std::byte> into) {
  while (!into.empty()) {
    const Result<ConstPiece> came = co_await Next(batch, into.size());
    if (!came) co_return came.error();
    std::ranges::copy(*came, into.begin());
    into = into.subspan(came->size());
  }
  co_return Status();
}

Task<Result<ConstPiece>> RailReader::Next(Batch* batch, std::uint64_t most) {
  if (came_at_ == came_end_) {
    const bool timed = batch != nullptr && batch->sink != nullptr;
    const Instant deadline = timed ? batch->deadline : Instant::Never();
    const bool in_time = executor().Now() < deadline;
    const Piece room(came_);
    Result<std::size_t> received = std::size_t{0};
    if (in_time) received = co_await stream_->Receive({&room, 1}, deadline);
    if (!in_time || (!received && received.error().code() == Code::kTooLate)) {
      GiveUp(*batch, Late());
      co_return ConstPiece();
    }
    if (!received) co_return Error(received.error());
    if (*received == 0) co_return Error(Code::kGone, Text(stream_->peer(), ": closed the rail"));
    came_at_ = 0;
    came_end_ = *received;
  }
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(most, came_end_ - came_at_));
  co_return ConstPiece(came_).subspan(std::exchange(came_at_, came_at_ + bytes), bytes);
}

}  // namespace cistern::net
