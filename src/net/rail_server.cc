// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "base/event.h"
#include "base/format.h"
#include "net/fabric.h"
#include "net/pieces.h"
#include "net/rail.h"
#include "net/rail_message.h"

namespace cistern::net {
namespace {

// What goes to the network together: fewer calls than items, and the first bytes soon.
constexpr std::size_t kSendBytes = 512u << 10;
// Of a reader past its deadline.
constexpr std::int64_t kStallUs = RailLimits::kStallUs;

// Tells the source of everything that it found, whatever becomes of the connection.
class Found final {
 public:
  Found(RailSource& source, std::size_t items) : source_(source), answers_(items) {}
  Found(const Found&) = delete;
  Found& operator=(const Found&) = delete;
  ~Found() {
    for (std::size_t i = 0; i < count_; ++i) {
      if (answers_[i].status.ok()) source_.Unsent(answers_[i].handle);
    }
  }

  // Item after item.
  RailSource::Answer& Add(RailSource::Answer answer) { return answers_[count_++] = std::move(answer); }
  std::size_t count() const { return count_; }
  const RailSource::Answer& at(std::size_t item) const { return answers_[item]; }
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
  RailServer(Stream& stream, RailSource& source, const Fabric* fabric, Bandwidth* bandwidth)
      : stream_(stream), source_(source), fabric_(fabric), bandwidth_(bandwidth) {}
  Executor& executor() { return stream_.executor(); }

  // What is asked is looked for while other answers are on their way. A batch of which something has to be
  // fetched first keeps no other waiting, unless its answer has begun.
  Task<Status> Serve() {
    Task<void> answering = AnswerAll();
    co_await TakeAll();
    all_taken_ = true;
    changed_.Pulse();
    co_await std::move(answering);
    co_return failed_;
  }

 private:
  // What the reader said in one message, and what is looked for because of it.
  struct Said {
    RailBatchHead head;
    std::vector<std::byte> bytes;  // behind the head
    Instant deadline;
    std::vector<ConstPiece> questions;  // in `bytes`
    std::vector<Task<RailSource::Answer>> findings;
    std::size_t sought = 0;  // of these, that go on

    bool any_order() const {
      return (head.id & RailBatchHead::kAnyOrder) != 0 || head.magic == RailBatchHead::kHello;
    }
    bool begun() const { return sought == 0 || findings.front().done(); }
  };
  // A batch of which the reader fetches bodies itself.
  struct Parked {
    std::uint64_t id = 0;
    Instant until;  // nobody comes back later
    std::unique_ptr<Found> found;
  };

  Status NoQuestion() {
    return Status(Code::kInvalid, Text(stream_.peer(), ": sent what is no question of a rail"));
  }
  // The first failure is what the rail ended with; others follow from it.
  void Fail(Status status) {
    if (failed_.ok()) failed_ = std::move(status);
    stream_.Close();
  }

  // Until the reader closes, or something fails.
  Task<void> TakeAll() {
    for (;;) {
      // A reader has no more outstanding.
      while (said_.size() >= RailLimits::kBatches) co_await changed_.Wait();
      auto said = std::make_unique<Said>();
      const Result<bool> more = co_await TakeOne(*said);
      if (!more) Fail(more.error());
      if (!more || !*more) co_return;
      said_.push_back(std::move(said));
      changed_.Pulse();
    }
  }
  // false: the reader closed before the first byte.
  Task<Result<bool>> TakeOne(Said& said) {
    std::array<std::byte, RailBatchHead::kBytes> bytes;
    Result<bool> more = co_await Take(bytes);
    if (!more || !*more) co_return more;
    said.head = RailBatchHead::Load(bytes.data());
    if (!IsQuestion(said.head)) co_return Error(NoQuestion());
    said.bytes.resize(said.head.bytes);
    more = co_await Take(said.bytes);
    if (!more) co_return more;
    if (!*more) co_return Error(NoQuestion());
    said.deadline = executor().Now().PlusUs(said.head.remaining_us);
    const bool asks =
        said.head.magic == RailBatchHead::kQuestions || said.head.magic == RailBatchHead::kPlaced;
    if (asks && !BeginToFind(said)) co_return Error(NoQuestion());
    co_return true;
  }
  static bool IsQuestion(const RailBatchHead& head) {
    const bool items = head.items > 0 && head.items <= RailLimits::kBatchItems;
    if (head.remaining_us > RailLimits::kBatchUs) return false;
    switch (head.magic) {
      case RailBatchHead::kQuestions:
      case RailBatchHead::kPlaced:
        return items && head.bytes <= head.items * (2 + RailLimits::kQuestionBytes);
      case RailBatchHead::kTaken: return items && head.bytes == head.items * sizeof(std::uint64_t);
      case RailBatchHead::kHello: return head.bytes <= 2 + Fabric::kNameBytes;
      default: return false;
    }
  }
  // All of a batch are looked for together: what has to be fetched is fetched side by side.
  bool BeginToFind(Said& said) {
    Decoder in(said.bytes);
    for (std::uint32_t item = 0; item < said.head.items; ++item) {
      const std::size_t size = in.U16();
      said.questions.push_back(in.Bytes(size));
      if (!in.ok() || size > RailLimits::kQuestionBytes) return false;
    }
    if (!in.done()) return false;
    for (const ConstPiece question : said.questions) said.findings.push_back(Seek(said, question));
    return true;
  }
  // false: the reader closed before the first byte.
  Task<Result<bool>> Take(std::span<std::byte> into) {
    for (bool first = true; !into.empty(); first = false) {
      const Result<std::size_t> bytes = co_await stream_.Receive({&into, 1}, Instant::Never());
      if (!bytes) co_return Error(bytes.error());
      if (*bytes == 0 && first) co_return false;
      if (*bytes == 0) co_return Error(Code::kGone, Text(stream_.peer(), ": closed within a question"));
      into = into.subspan(*bytes);
    }
    co_return true;
  }

  // What is answered next: of what was found whole the first, else of what was found in part. A reader of an
  // earlier release knows its answers by their order. Null: nothing has been found yet.
  Said* Next() const {
    if (!said_.empty() && !said_.front()->any_order()) return said_.front().get();
    Said* begun = nullptr;
    for (const std::unique_ptr<Said>& said : said_) {
      if (!said->any_order()) break;
      if (said->sought == 0) return said.get();
      if (begun == nullptr && said->begun()) begun = said.get();
    }
    return begun;
  }

  // Until all is answered and no more comes. Where the stream is closed an answer fails at once, and its
  // source is told.
  Task<void> AnswerAll() {
    for (;;) {
      Said* const next = Next();
      if (next == nullptr) {
        if (said_.empty() && all_taken_) co_return;
        Instant until = Instant::Never();
        for (const Parked& parked : parked_) until = std::min(until, parked.until);
        (void)co_await changed_.Wait(until);
        std::erase_if(parked_, [&](const Parked& parked) { return parked.until <= executor().Now(); });
        continue;
      }
      Said& said = *next;
      Status status;
      switch (said.head.magic) {
        case RailBatchHead::kTaken: status = co_await Judge(said); break;
        case RailBatchHead::kHello: status = co_await Greet(said); break;
        default: status = co_await Answer(said); break;
      }
      if (!status.ok()) Fail(std::move(status));
      std::erase_if(said_, [next](const std::unique_ptr<Said>& one) { return one.get() == next; });
      changed_.Pulse();
    }
  }

  Task<Status> Greet(const Said& said) {
    Decoder in(said.bytes);
    const std::size_t bytes = in.U16();
    const ConstPiece kind = in.Bytes(bytes);
    if (!in.done()) co_return NoQuestion();
    const bool same =
        fabric_ != nullptr && std::ranges::equal(kind, std::as_bytes(std::span(fabric_->kind())));
    std::vector<std::byte> answer(RailBatchHead::kBytes);
    Encoder out(answer);
    const auto say = [&](ConstPiece what) {
      out.U16(static_cast<std::uint16_t>(what.size()));
      out.Bytes(what);
    };
    say(same ? kind : ConstPiece());
    say(same ? fabric_->name() : ConstPiece());
    RailBatchHead head;
    head.magic = RailBatchHead::kFabric;
    head.bytes = static_cast<std::uint32_t>(answer.size() - RailBatchHead::kBytes);
    head.Store(answer.data());
    const ConstPiece piece(answer);
    co_return co_await stream_.Send({&piece, 1}, executor().Now().PlusUs(kStallUs));
  }

  Task<Status> Answer(Said& said) {
    const RailBatchHead& head = said.head;
    const Instant send_by = std::max(said.deadline, executor().Now()).PlusUs(kStallUs);
    const bool may_place =
        head.magic == RailBatchHead::kPlaced && fabric_ != nullptr && parked_.size() < RailLimits::kBatches;
    auto found = std::make_unique<Found>(source_, head.items);
    bool placed = false;
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
    std::vector<Task<RailSource::Answer>>& findings = said.findings;
    for (std::uint32_t item = 0; item < head.items; ++item) {
      findings[item] = AtItsTurn(std::move(findings[item]), said.questions[item], said.deadline);
      // What is ready does not wait for what is not.
      if (!findings[item].done() && !pieces.empty()) {
        if (Status status = co_await Send(pieces, &bytes, send_by); !status.ok())
          co_return co_await GiveUp(findings, item, *found, status);
      }
      const RailSource::Answer& given = found->Add(co_await std::move(findings[item]));
      const std::optional<FabricPlace> place = may_place ? PlaceOf(given) : std::nullopt;
      placed = placed || place.has_value();
      AddItem(given, place, heads[item + 1], pieces);
      bytes += heads[item + 1].size();
      if (!place) bytes += TotalBytes(std::span<const ConstPiece>(given.body));
      if (bytes < kSendBytes) continue;
      if (Status status = co_await Send(pieces, &bytes, send_by); !status.ok())
        co_return co_await GiveUp(findings, item + 1, *found, status);
    }
    if (Status status = co_await Send(pieces, &bytes, send_by); !status.ok()) co_return status;
    if (placed) {
      parked_.push_back({head.id, send_by, std::move(found)});
      co_return Status();
    }
    const std::vector<std::byte> whole = found->Sent();
    pieces.emplace_back(whole);
    co_return co_await Send(pieces, &bytes, send_by);
  }

  // Waits for what is still looked for, so that its source is told of its end.
  Task<Status> GiveUp(std::vector<Task<RailSource::Answer>>& findings, std::size_t from, Found& found,
                      Status status) {
    for (std::size_t item = from; item < findings.size(); ++item)
      found.Add(co_await std::move(findings[item]));
    co_return status;
  }

  // The reader has what it could fetch: it gets the rest, and hears what was one record's.
  Task<Status> Judge(const Said& said) {
    const RailBatchHead& head = said.head;
    const auto at = std::ranges::find(parked_, head.id, &Parked::id);
    std::unique_ptr<Found> found;
    if (at != parked_.end()) {
      found = std::move(at->found);
      parked_.erase(at);
      if (found->count() != head.items) co_return NoQuestion();
    }
    std::vector<std::byte> says(RailBatchHead::kBytes);
    RailBatchHead verdict;
    verdict.magic = RailBatchHead::kVerdict;
    verdict.items = head.items;
    verdict.id = head.id;
    verdict.Store(says.data());
    std::vector<ConstPiece> pieces = {says};
    std::vector<std::array<std::byte, sizeof(std::uint64_t)>> counts(head.items);
    Decoder in(said.bytes);
    for (std::uint32_t item = 0; item < head.items; ++item) {
      std::uint64_t from = in.U64();
      if (from == RailBatchHead::kNothing) continue;
      // A batch that was given up here has nothing left.
      const RailSource::Answer* const answer =
          found && found->at(item).status.ok() ? &found->at(item) : nullptr;
      pieces.emplace_back(counts[item]);
      std::uint64_t bytes = 0;
      for (ConstPiece piece : answer == nullptr ? std::span<const ConstPiece>() : answer->body) {
        const std::uint64_t skipped = std::min<std::uint64_t>(from, piece.size());
        from -= skipped;
        piece = piece.subspan(skipped);
        bytes += piece.size();
        pieces.push_back(piece);
      }
      StoreAt(counts[item].data(), 0, bytes);
    }
    const Instant send_by = executor().Now().PlusUs(kStallUs);
    std::size_t sent = TotalBytes(std::span<const ConstPiece>(pieces));
    if (Status status = co_await Send(pieces, &sent, send_by); !status.ok()) co_return status;
    const std::vector<std::byte> whole = found ? found->Sent() : std::vector<std::byte>(head.items);
    pieces.emplace_back(whole);
    co_return co_await Send(pieces, &sent, send_by);
  }

  std::optional<FabricPlace> PlaceOf(const RailSource::Answer& given) const {
    if (!given.status.ok() || given.body.size() != 1) return std::nullopt;
    return fabric_->PlaceOf(given.body.front());
  }

  static void AddItem(const RailSource::Answer& given, const std::optional<FabricPlace>& place,
                      std::vector<std::byte>& head, std::vector<ConstPiece>& pieces) {
    RailItemHead item;
    item.code = static_cast<std::uint8_t>(given.status.code());
    item.placed = place ? 1 : 0;
    if (given.status.ok()) {
      CISTERN_ASSERT(given.head.size() <= RailLimits::kHeadBytes);
      item.head_bytes = static_cast<std::uint32_t>(given.head.size());
      item.body_bytes = TotalBytes(std::span<const ConstPiece>(given.body));
    }
    head.resize(RailItemHead::kBytes);
    item.Store(head.data());
    if (place) {
      Encoder out(head);
      out.U64(place->address);
      out.U64(place->key);
    }
    if (given.status.ok()) head.insert(head.end(), given.head.begin(), given.head.end());
    pieces.emplace_back(head);
    if (given.status.ok() && !place) pieces.insert(pieces.end(), given.body.begin(), given.body.end());
  }

  // Whether what is sent from now on would come after this.
  bool Late(Instant deadline) const {
    return bandwidth_ != nullptr && bandwidth_->BeginAt(stream_.executor().Now()) > deadline;
  }
  static RailSource::Answer TooLate() {
    return {.status = Status(Code::kBusy, "its turn would come after its deadline")};
  }
  // The source's, but for what would be late already.
  Task<RailSource::Answer> Find(ConstPiece question, Instant deadline) {
    if (Late(deadline)) co_return TooLate();
    co_return co_await source_.Find(question, deadline);
  }
  Task<RailSource::Answer> Seek(Said& said, ConstPiece question) {
    ++said.sought;
    RailSource::Answer found = co_await Find(question, said.deadline);
    --said.sought;
    changed_.Pulse();
    co_return found;
  }
  // What was found while others were answered: a record in memory, which nobody keeps there, may have given
  // way, and the bound may leave no time for it.
  Task<RailSource::Answer> AtItsTurn(Task<RailSource::Answer> finding, ConstPiece question,
                                     Instant deadline) {
    RailSource::Answer found = co_await std::move(finding);
    if (found.status.ok() && !source_.Stands(found.handle)) {
      source_.Unsent(found.handle);
      found = co_await Find(question, deadline);
    }
    if (found.status.ok() && Late(deadline)) {
      source_.Unsent(found.handle);
      co_return TooLate();
    }
    co_return found;
  }

  // All of them, in their turn, and begins anew.
  Task<Status> Send(std::vector<ConstPiece>& pieces, std::size_t* bytes, Instant deadline) {
    if (bandwidth_ != nullptr) {
      const Instant now = executor().Now();
      if (const Instant turn = bandwidth_->Take(*bytes, now); turn > now) {
        (void)co_await SleepUntil(turn);
        deadline = deadline.PlusNs(turn.NsSince(now));
      }
    }
    const Status status = co_await stream_.Send(pieces, deadline);
    pieces.clear();
    *bytes = 0;
    co_return status;
  }

  Stream& stream_;
  RailSource& source_;
  const Fabric* const fabric_;
  Bandwidth* const bandwidth_;
  std::deque<std::unique_ptr<Said>> said_;  // in order, what is answered now among them
  std::vector<Parked> parked_;
  Event changed_;  // of said_, or of what was found
  bool all_taken_ = false;
  Status failed_;
};

}  // namespace

Task<Status> ServeRail(Stream& stream, RailSource& source, const Fabric* fabric, Bandwidth* bandwidth) {
  RailServer server(stream, source, fabric, bandwidth);
  Status status = co_await server.Serve();
  stream.Close();
  co_return status;
}

}  // namespace cistern::net
