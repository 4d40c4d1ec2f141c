// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "net/pieces.h"
#include "net/rail.h"
#include "net/rail_message.h"

namespace cistern::net {
namespace {

// What goes to the network together: fewer calls than items, and the first bytes soon.
constexpr std::size_t kSendBytes = 512u << 10;
// A reader that takes nothing for so long past its deadline has lost the rail.
constexpr std::int64_t kStallUs = 3'000'000;

// Tells the source of everything that it found, whatever becomes of the connection.
class Found final {
 public:
  Found(RailSource& source, std::size_t items) : source_(source), answers_(items) {}
  Found(const Found&) = delete;
  Found& operator=(const Found&) = delete;
  ~Found() { (void)Sent(); }

  // Item after item.
  RailSource::Answer& Add(RailSource::Answer answer) { return answers_[count_++] = std::move(answer); }
  // A byte an item: 1 if its body was one record's.
  std::vector<std::byte> Sent() {
    std::vector<std::byte> whole(count_);
    for (std::size_t i = 0; i < count_; ++i) {
      if (answers_[i].status.ok() && source_.Sent(answers_[i].handle)) whole[i] = std::byte{1};
    }
    count_ = 0;
    return whole;
  }

 private:
  RailSource& source_;
  std::vector<RailSource::Answer> answers_;
  std::size_t count_ = 0;
};

class RailServer final {
 public:
  RailServer(Stream& stream, RailSource& source) : stream_(stream), source_(source) {}
  Executor& executor() { return stream_.executor(); }

  Task<Status> Serve() {
    for (;;) {
      std::array<std::byte, RailBatchHead::kBytes> bytes;
      Result<bool> more = co_await Take(bytes);
      if (!more) co_return more.error();
      if (!*more) co_return Status();
      const RailBatchHead head = RailBatchHead::Load(bytes.data());
      if (head.magic != RailBatchHead::kQuestions || head.items == 0 ||
          head.items > RailLimits::kBatchItems ||
          head.bytes > head.items * (2 + RailLimits::kQuestionBytes)) {
        co_return NoQuestion();
      }
      questions_.resize(head.bytes);
      more = co_await Take(questions_);
      if (!more) co_return more.error();
      if (!*more) co_return NoQuestion();
      if (Status status = co_await Answer(head); !status.ok()) co_return status;
    }
  }

 private:
  Status NoQuestion() {
    return Status(Code::kInvalid, Text(stream_.peer(), ": sent what is no question of a rail"));
  }

  // false: the reader closed before the first byte.
  Task<Result<bool>> Take(std::span<std::byte> into) {
    for (bool first = true; !into.empty(); first = false) {
      Result<std::size_t> bytes = co_await stream_.Receive({&into, 1}, Instant::Never());
      if (!bytes) co_return Error(bytes.error());
      if (*bytes == 0 && first) co_return false;
      if (*bytes == 0) co_return Error(Code::kGone, Text(stream_.peer(), ": closed within a question"));
      into = into.subspan(*bytes);
    }
    co_return true;
  }

  Task<Status> Answer(RailBatchHead head) {
    const Instant deadline = executor().Now().PlusUs(head.remaining_us);
    const Instant send_by = deadline.PlusUs(kStallUs);
    Found found(source_, head.items);
    std::vector<std::vector<std::byte>> heads(head.items + 1);
    std::vector<ConstPiece> pieces;
    RailBatchHead answer;
    answer.magic = RailBatchHead::kAnswers;
    answer.items = head.items;
    answer.id = head.id;
    heads[0].resize(RailBatchHead::kBytes);
    answer.Store(heads[0].data());
    pieces.emplace_back(heads[0]);
    std::size_t bytes = heads[0].size();
    Decoder in(questions_);
    for (std::uint32_t item = 0; item < head.items; ++item) {
      const std::size_t size = in.U16();
      const ConstPiece question = in.Bytes(size);
      if (!in.ok() || size > RailLimits::kQuestionBytes) co_return NoQuestion();
      Task<RailSource::Answer> finding = source_.Find(question, deadline);
      // What is ready does not wait for what is not.
      if (!finding.done() && !pieces.empty()) {
        if (Status status = co_await Send(pieces, &bytes, send_by); !status.ok()) {
          found.Add(co_await std::move(finding));
          co_return status;
        }
      }
      RailSource::Answer& given = found.Add(co_await std::move(finding));
      AddItem(given, heads[item + 1], pieces);
      bytes += heads[item + 1].size() + TotalBytes(std::span<const ConstPiece>(given.body));
      if (bytes < kSendBytes) continue;
      if (Status status = co_await Send(pieces, &bytes, send_by); !status.ok()) co_return status;
    }
    if (!in.done()) co_return NoQuestion();
    if (Status status = co_await Send(pieces, &bytes, send_by); !status.ok()) co_return status;
    const std::vector<std::byte> whole = found.Sent();
    pieces.emplace_back(whole);
    co_return co_await Send(pieces, &bytes, send_by);
  }

  static void AddItem(const RailSource::Answer& given, std::vector<std::byte>& head,
                      std::vector<ConstPiece>& pieces) {
    RailItemHead item;
    item.code = static_cast<std::uint8_t>(given.status.code());
    if (given.status.ok()) {
      CISTERN_ASSERT(given.head.size() <= RailLimits::kHeadBytes);
      item.head_bytes = static_cast<std::uint32_t>(given.head.size());
      item.body_bytes = TotalBytes(std::span<const ConstPiece>(given.body));
    }
    head.resize(RailItemHead::kBytes);
    item.Store(head.data());
    if (given.status.ok()) head.insert(head.end(), given.head.begin(), given.head.end());
    pieces.emplace_back(head);
    if (given.status.ok()) pieces.insert(pieces.end(), given.body.begin(), given.body.end());
  }

  // All of them, and begins anew.
  Task<Status> Send(std::vector<ConstPiece>& pieces, std::size_t* bytes, Instant deadline) {
    const Status status = co_await stream_.Send(pieces, deadline);
    pieces.clear();
    *bytes = 0;
    co_return status;
  }

  Stream& stream_;
  RailSource& source_;
  std::vector<std::byte> questions_;
};

}  // namespace

Task<Status> ServeRail(Stream& stream, RailSource& source) {
  RailServer server(stream, source);
  Status status = co_await server.Serve();
  stream.Close();
  co_return status;
}

}  // namespace cistern::net
