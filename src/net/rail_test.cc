// SPDX-License-Identifier: Apache-2.0
#include "net/rail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <utility>

#include "base/codec.h"
#include "base/format.h"
#include "base/random_bytes.h"
#include "net/rail_message.h"
#include "net/test_pair.h"
#include "net/test_rail.h"

namespace cistern::net {
namespace {

using ::testing::HasSubstr;

// Blocks by number; a question is the number. Finding one may wait until it is let.
class TestSource final : public RailSource {
 public:
  explicit TestSource(Executor& executor) : executor_(executor) {}
  Executor& executor() { return executor_; }

  Task<Answer> Find(ConstPiece question, Instant) override {
    Decoder in(question);
    const std::uint64_t number = in.U64();
    Answer answer;
    if (releases == number) let_go.Set();
    if (waits_for == number) co_await let_go.Wait();
    const auto block = blocks.find(number);
    if (!in.done() || block == blocks.end()) {
      answer.status = Status(Code::kMiss);
      co_return answer;
    }
    ++open;
    answer.handle = number;
    Encoder(answer.head).U64(number);
    // In three pieces, one of them empty.
    const ConstPiece body(block->second);
    answer.body = {body.first(body.size() / 3), ConstPiece(), body.subspan(body.size() / 3)};
    co_return answer;
  }
  bool Stands(std::uint64_t handle) const override { return handle != gives_way; }
  bool Sent(std::uint64_t handle) override {
    ++sent;
    --open;
    return handle != torn && handle != gives_way;
  }

  std::map<std::uint64_t, std::vector<std::byte>> blocks;
  std::optional<std::uint64_t> waits_for;
  std::optional<std::uint64_t> releases;  // what waits, by being looked for
  Event let_go;
  std::uint64_t torn = ~0ull;
  std::optional<std::uint64_t> gives_way;  // after it was found for the first time
  void Unsent(std::uint64_t handle) override {
    --open;
    if (handle == gives_way) gives_way.reset();
  }
  int open = 0, sent = 0;

 private:
  Executor& executor_;
};

class TestSink final : public RailSink {
 public:
  Status Begin(std::uint32_t item, ConstPiece head, std::uint64_t body_bytes) override {
    if (refuses == item) return Status(Code::kBusy, "there is no slot");
    numbers[item] = Decoder(head).U64();
    expected[item] = body_bytes;
    bodies[item].clear();
    return Status();
  }
  void Take(std::uint32_t item, ConstPiece bytes) override {
    EXPECT_FALSE(ends.contains(item)) << "what has ended takes no more";
    EXPECT_NE(refuses, item);
    bodies[item].insert(bodies[item].end(), bytes.begin(), bytes.end());
    EXPECT_LE(bodies[item].size(), expected[item]);
  }
  void End(std::uint32_t item, const Status& status) override {
    EXPECT_FALSE(ends.contains(item)) << "an item ends once";
    ends[item] = status;
  }

  std::optional<std::uint32_t> refuses;
  std::map<std::uint32_t, std::uint64_t> numbers;
  std::map<std::uint32_t, std::vector<std::byte>> bodies;
  std::map<std::uint32_t, std::uint64_t> expected;
  std::map<std::uint32_t, Status> ends;
};

class RailTest : public ::testing::Test {
 public:
  Executor& executor() { return pair_.executor(); }

 protected:
  RailTest() {
    for (const std::size_t bytes : {0, 1, 3'000, 65'536, 2 << 20, 700'001}) {
      std::vector<std::byte>& block = source_.blocks[source_.blocks.size()];
      block.resize(bytes);
      FillRandom(bytes, block);
    }
    serving_ = ServeRail(*pair_.far, source_);
    reader_.emplace(std::move(pair_.near));
  }
  ~RailTest() override {
    reader_->Close();
    if (pair_.far) pair_.far->Close();
    source_.let_go.Set();
    (void)pair_.loop->BlockOn(std::move(serving_));
    pair_.loop->BlockOn(Settle());
    EXPECT_EQ(source_.open, 0) << "the source is told of the end of all that it found";
  }
  Task<void> Settle() { co_await Yield(); }
  Task<Status> Read(std::vector<std::uint64_t> numbers, RailSink& sink, Instant deadline) {
    return ReadNumbers(*reader_, std::move(numbers), sink, deadline);
  }
  Status ReadNow(std::vector<std::uint64_t> numbers, RailSink& sink) {
    return pair_.loop->BlockOn(Read(std::move(numbers), sink, pair_.After(1'000'000)));
  }

  TestPair pair_;
  TestSource source_{pair_.executor()};
  Task<Status> serving_;
  std::optional<RailReader> reader_;
};

TEST_F(RailTest, ABatchBringsEachItemWholeAndInPlace) {
  TestSink sink;
  EXPECT_EQ(ReadNow({3, 0, 4, 1, 2, 5, 4}, sink).ToString(), "ok");
  for (const auto& [item, number] : sink.numbers) {
    EXPECT_TRUE(sink.ends[item].ok());
    EXPECT_TRUE(sink.bodies[item] == source_.blocks[number]) << number;
  }
  EXPECT_EQ(sink.ends.size(), 7u);
}

TEST_F(RailTest, RailsThatShareABoundTakeTurns) {
  Bandwidth bandwidth(10u << 20);
  TestPair pair;
  auto serving = ServeRail(*pair.far, source_, nullptr, &bandwidth);
  auto reader = std::make_unique<RailReader>(std::move(pair.near));
  std::vector<std::byte> question;
  Encoder(question).U64(4);
  const std::vector<ConstPiece> asked(2, ConstPiece(question));
  const Instant began = pair.clock.Now();
  TestSink first, second, late;
  auto one = reader->Read(asked, first, pair.After(5'000'000));
  auto other = reader->Read(asked, second, pair.After(5'000'000));
  auto third = reader->Read(asked, late, pair.After(100'000));
  EXPECT_TRUE(pair.loop->BlockOn(std::move(one)).ok());
  EXPECT_TRUE(pair.loop->BlockOn(std::move(other)).ok());
  EXPECT_EQ(pair.loop->BlockOn(std::move(third)).code(), Code::kTooLate);
  for (std::uint32_t item = 0; item < 2; ++item) {
    EXPECT_TRUE(first.bodies[item] == source_.blocks[4]);
    EXPECT_TRUE(second.bodies[item] == source_.blocks[4]);
    EXPECT_FALSE(late.ends[item].ok());
  }
  // Four bodies of 2 MiB, the first of them at once.
  EXPECT_GE(pair.clock.Now().UsSince(began), 600'000 - Bandwidth::kKeptNs / 1'000);
  EXPECT_GE(bandwidth.waits().value(), 3u);
  reader.reset();
  (void)pair.loop->BlockOn(std::move(serving));
}

TEST_F(RailTest, ItemsOfABatchAreLookedForTogether) {
  source_.waits_for = 3;
  source_.releases = 4;
  TestSink sink;
  EXPECT_EQ(ReadNow({3, 4, 1}, sink).ToString(), "ok");
  for (const auto& [item, number] : sink.numbers)
    EXPECT_TRUE(sink.bodies[item] == source_.blocks[number]) << number;
  EXPECT_EQ(sink.ends.size(), 3u);
}

TEST_F(RailTest, BatchesOutstandingTogetherAreLookedForTogether) {
  source_.waits_for = 3;
  source_.releases = 4;
  TestSink first, second;
  auto one = Read({3}, first, pair_.After(1'000'000));
  auto other = Read({4}, second, pair_.After(1'000'000));
  EXPECT_EQ(pair_.loop->BlockOn(std::move(one)).ToString(), "ok");
  EXPECT_EQ(pair_.loop->BlockOn(std::move(other)).ToString(), "ok");
  EXPECT_TRUE(first.bodies[0] == source_.blocks[3]);
  EXPECT_TRUE(second.bodies[0] == source_.blocks[4]);
}

TEST_F(RailTest, ARecordThatGivesWayBeforeItsTurnIsLookedForAgain) {
  source_.waits_for = 3;
  source_.releases = 4;
  source_.gives_way = 4;
  TestSink first, second;
  auto one = Read({3}, first, pair_.After(1'000'000));
  auto other = Read({4}, second, pair_.After(1'000'000));
  EXPECT_TRUE(pair_.loop->BlockOn(std::move(one)).ok());
  EXPECT_TRUE(pair_.loop->BlockOn(std::move(other)).ok());
  EXPECT_TRUE(second.ends[0].ok()) << second.ends[0].ToString();
  EXPECT_TRUE(second.bodies[0] == source_.blocks[4]);
  EXPECT_EQ(source_.sent, 2) << "what gave way was not sent";
}

TEST_F(RailTest, BatchesOutstandingTogetherAreAnsweredInOrder) {
  std::array<TestSink, RailLimits::kBatches> sinks;
  std::vector<Task<Status>> reads;
  for (std::size_t i = 0; i < sinks.size(); ++i)
    reads.push_back(Read({i, 4, 5}, sinks[i], pair_.After(1'000'000)));
  TestSink more;
  EXPECT_EQ(ReadNow({1}, more).code(), Code::kBusy);
  EXPECT_TRUE(more.ends.empty());
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_TRUE(pair_.loop->BlockOn(std::move(reads[i])).ok());
    EXPECT_TRUE(sinks[i].bodies[0] == source_.blocks[i]);
    EXPECT_TRUE(sinks[i].bodies[2] == source_.blocks[5]);
  }
}

TEST_F(RailTest, WhatIsMissingRefusedOrTornIsThatItemsAlone) {
  TestSink sink;
  sink.refuses = 1;
  source_.torn = 5;
  EXPECT_TRUE(ReadNow({99, 4, 5, 3}, sink).ok());
  EXPECT_EQ(sink.ends[0].code(), Code::kMiss);
  EXPECT_EQ(sink.ends[1].code(), Code::kBusy);
  EXPECT_EQ(sink.ends[2].code(), Code::kLapsed);
  EXPECT_THAT(std::string(sink.ends[2].message()), HasSubstr("another record"));
  EXPECT_TRUE(sink.ends[3].ok());
  EXPECT_TRUE(sink.bodies[3] == source_.blocks[3]);
}

TEST_F(RailTest, WhatIsReadyDoesNotWaitForWhatIsNot) {
  source_.waits_for = 5;
  TestSink sink;
  auto read = Read({3, 5}, sink, pair_.After(1'000'000));
  static_cast<io::SimulatedLoop&>(*pair_.loop).RunUntilIdle();
  // The deadline came while the second was looked for; the first one had arrived by then.
  EXPECT_TRUE(sink.bodies[0] == source_.blocks[3]);
  EXPECT_EQ(pair_.loop->BlockOn(std::move(read)).code(), Code::kTooLate);
  source_.let_go.Set();
}

TEST_F(RailTest, PastItsDeadlineABatchEndsUntouchedAndTheNextOneIsWhole) {
  source_.waits_for = 5;
  TestSink late, later;
  EXPECT_EQ(pair_.loop->BlockOn(Read({4, 5, 4}, late, pair_.After(10'000))).code(), Code::kTooLate);
  EXPECT_EQ(late.ends.size(), 3u);
  const auto taken = late.bodies;
  auto next = Read({3, 4}, later, pair_.After(1'000'000));
  source_.let_go.Set();
  EXPECT_TRUE(pair_.loop->BlockOn(std::move(next)).ok());
  EXPECT_EQ(late.bodies, taken) << "what came later was dropped";
  EXPECT_TRUE(later.bodies[1] == source_.blocks[4]);
}

TEST_F(RailTest, ABatchThatIsReadyDoesNotWaitForOneThatIsNot) {
  source_.waits_for = 5;
  TestSink slow, half, ready;
  auto first = Read({5, 4}, slow, pair_.After(1'000'000));
  auto second = Read({3, 4}, ready, pair_.After(1'000'000));
  EXPECT_EQ(pair_.loop->BlockOn(std::move(second)).ToString(), "ok");
  EXPECT_TRUE(ready.bodies[1] == source_.blocks[4]);
  EXPECT_TRUE(slow.ends.empty());
  EXPECT_EQ(ReadNow({1, 2, 3}, half).ToString(), "ok");
  source_.let_go.Set();
  EXPECT_EQ(pair_.loop->BlockOn(std::move(first)).ToString(), "ok");
  EXPECT_TRUE(slow.bodies[0] == source_.blocks[5]);
}

TEST_F(RailTest, ABatchEndsAtItsOwnDeadlineAndNotAtThatOfOneBeforeIt) {
  source_.waits_for = 5;
  TestSink first, second;
  auto slow = Read({5}, first, pair_.After(1'000'000));
  EXPECT_EQ(pair_.loop->BlockOn(Read({5}, second, pair_.After(1'000))).code(), Code::kTooLate);
  EXPECT_EQ(second.ends[0].code(), Code::kTooLate);
  source_.let_go.Set();
  EXPECT_TRUE(pair_.loop->BlockOn(std::move(slow)).ok());
  EXPECT_TRUE(first.bodies[0] == source_.blocks[5]);
}

// Of a rail whose other side takes nothing for a while.
TEST(RailToAFullPeer, AQuestionThatCannotLeaveByItsDeadlineEndsAloneAndTheRailGoesOn) {
  TestPair pair;
  SimulatedNetwork network(pair.executor(), 1, {.window_bytes = 64});
  const auto here = network.Host("here"), there = network.Host("there");
  const auto listener = std::move(*there->Listen("there:0"));
  auto near = std::move(*pair.loop->BlockOn(here->Connect(listener->address(), Instant::Never())));
  const auto far = std::move(*pair.loop->BlockOn(listener->Accept(Instant::Never())));
  TestSource source(pair.executor());
  source.blocks[1] = source.blocks[2] = std::vector<std::byte>(10);
  RailReader reader(std::move(near));
  TestSink first, second, third;
  auto hasty = ReadNumbers(reader, std::vector<std::uint64_t>(20, 1), first, pair.After(1'000));
  auto patient = ReadNumbers(reader, {2}, second, pair.After(1'000'000));
  EXPECT_EQ(pair.loop->BlockOn(std::move(hasty)).code(), Code::kTooLate);
  EXPECT_EQ(first.ends.size(), 20u);
  EXPECT_TRUE(reader.status().ok());
  auto serving = ServeRail(*far, source);
  EXPECT_EQ(pair.loop->BlockOn(std::move(patient)).ToString(), "ok");
  EXPECT_TRUE(second.bodies[0] == source.blocks[2]);
  EXPECT_TRUE(pair.loop->BlockOn(ReadNumbers(reader, {1}, third, pair.After(1'000'000))).ok());
  EXPECT_TRUE(first.bodies.empty());
  reader.Close();
  EXPECT_TRUE(pair.loop->BlockOn(std::move(serving)).ok());
  static_cast<io::SimulatedLoop&>(*pair.loop).RunUntilIdle();
}

TEST_F(RailTest, ABrokenConnectionEndsAllThatIsOutstanding) {
  source_.waits_for = 5;
  TestSink first, second, third;
  auto one = Read({4, 5}, first, pair_.After(1'000'000));
  auto two = Read({3}, second, pair_.After(1'000'000));
  pair_.network.Reset("here", "there");
  EXPECT_EQ(pair_.loop->BlockOn(std::move(one)).code(), Code::kGone);
  EXPECT_EQ(pair_.loop->BlockOn(std::move(two)).code(), Code::kGone);
  EXPECT_EQ(first.ends.size(), 2u);
  EXPECT_EQ(ReadNow({3}, third).code(), Code::kGone);
  EXPECT_FALSE(reader_->status().ok());
}

TEST_F(RailTest, LimitsOfABatchAreNamedAndNothingIsAsked) {
  TestSink sink;
  EXPECT_THAT(ReadNow(std::vector<std::uint64_t>(RailLimits::kBatchItems + 1), sink).ToString(),
              HasSubstr("1 to 64"));
  EXPECT_EQ(ReadNow({}, sink).code(), Code::kInvalid);
  std::vector<std::byte> question(RailLimits::kQuestionBytes + 1);
  const ConstPiece piece(question);
  EXPECT_EQ(pair_.loop->BlockOn(reader_->Read({&piece, 1}, sink, pair_.After(1'000))).code(), Code::kInvalid);
  EXPECT_EQ(reader_->outstanding(), 0u);
  EXPECT_TRUE(sink.ends.empty());
}

// ---- a peer of an earlier release

TEST(EarlierRailReader, IsAnsweredInTheOrderOfItsQuestions) {
  TestPair pair;
  TestSource source(pair.executor());
  source.blocks[1] = source.blocks[2] = std::vector<std::byte>(10);
  source.waits_for = 1;
  auto serving = ServeRail(*pair.far, source);
  std::vector<std::byte> asked;
  for (const std::uint64_t number : {1, 2}) {
    const std::size_t at = asked.size();
    asked.resize(at + RailBatchHead::kBytes);
    RailBatchHead head;
    head.magic = RailBatchHead::kQuestions;
    head.items = 1;
    head.id = number;
    head.bytes = 2 + sizeof(number);
    head.remaining_us = 1'000'000;
    head.Store(asked.data() + at);
    Encoder out(asked);
    out.U16(sizeof(number));
    out.U64(number);
  }
  EXPECT_TRUE(pair.loop->BlockOn(SendAll(pair.executor(), *pair.near, asked, pair.After(1'000'000))).ok());
  static_cast<io::SimulatedLoop&>(*pair.loop).RunUntilIdle();
  source.let_go.Set();
  const std::size_t answer_bytes =
      RailBatchHead::kBytes + RailItemHead::kBytes + sizeof(std::uint64_t) + 10 + 1;
  for (const std::uint64_t number : {1, 2}) {
    std::vector<std::byte> answer(answer_bytes);
    for (std::size_t at = 0; at < answer.size();) {
      const Piece rest = std::span(answer).subspan(at);
      const auto received = pair.loop->BlockOn(pair.near->Receive({&rest, 1}, pair.After(1'000'000)));
      ASSERT_TRUE(received.has_value() && *received > 0);
      at += *received;
    }
    EXPECT_EQ(RailBatchHead::Load(answer.data()).id, number);
  }
  pair.near->Close();
  EXPECT_TRUE(pair.loop->BlockOn(std::move(serving)).ok());
}

// ---- a peer that lies

class LyingPeerTest : public ::testing::Test {
 protected:
  std::vector<std::byte> Heads(std::uint32_t magic, std::uint32_t items, std::uint64_t id,
                               RailItemHead item) {
    std::vector<std::byte> bytes(RailBatchHead::kBytes + RailItemHead::kBytes);
    RailBatchHead head;
    head.magic = magic;
    head.items = items;
    head.id = id;
    head.Store(bytes.data());
    item.Store(bytes.data() + RailBatchHead::kBytes);
    return bytes;
  }
  // What becomes of a batch of one item that is answered with these bytes.
  Status Answered(const std::vector<std::byte>& bytes) {
    TestPair pair;
    RailReader reader(std::move(pair.near));
    TestSink sink;
    const std::array<std::byte, 8> number{};
    const ConstPiece question(number);
    auto read = reader.Read({&question, 1}, sink, pair.After(1'000'000));
    EXPECT_TRUE(pair.loop->BlockOn(SendAll(pair.executor(), *pair.far, bytes, pair.After(1'000'000))).ok());
    Status status = pair.loop->BlockOn(std::move(read));
    EXPECT_EQ(sink.ends.size(), 1u);
    reader.Close();
    static_cast<io::SimulatedLoop&>(*pair.loop).RunUntilIdle();
    return status;
  }
  static constexpr std::uint32_t kAnswers = RailBatchHead::kAnswers;
  static constexpr std::uint64_t kFirst = RailBatchHead::kAnyOrder + 1;  // a reader's id
};

TEST_F(LyingPeerTest, AnswersThatNobodyAskedForEndTheRail) {
  const RailItemHead none{.code = static_cast<std::uint8_t>(Code::kMiss)};
  std::vector<std::byte> good = Heads(kAnswers, 1, kFirst, none);
  good.push_back(std::byte{0});
  EXPECT_TRUE(Answered(good).ok());
  for (const std::uint8_t code : {static_cast<std::uint8_t>(kLastCode), std::uint8_t{200}}) {
    good = Heads(kAnswers, 1, kFirst, {.code = code});
    good.push_back(std::byte{0});
    EXPECT_TRUE(Answered(good).ok()) << "each code of a status is an answer, one of a later release too";
  }
  EXPECT_EQ(Answered(Heads(RailBatchHead::kQuestions, 1, kFirst, none)).code(), Code::kGone);
  EXPECT_EQ(Answered(Heads(kAnswers, 2, kFirst, none)).code(), Code::kGone);
  EXPECT_EQ(Answered(Heads(kAnswers, 1, kFirst + 1, none)).code(), Code::kGone);
  EXPECT_EQ(Answered(Heads(kAnswers, 1, kFirst, {.code = 200, .head_bytes = 1})).code(), Code::kGone);
  EXPECT_EQ(Answered(Heads(kAnswers, 1, kFirst, {.code = 1, .body_bytes = 1})).code(), Code::kGone);
  EXPECT_EQ(Answered(Heads(kAnswers, 1, kFirst, {.head_bytes = 1u << 20})).code(), Code::kGone);
  EXPECT_EQ(Answered(Heads(kAnswers, 1, kFirst, {.body_bytes = 1ull << 40})).code(), Code::kGone);
  EXPECT_EQ(Answered(Heads(kAnswers, 1, kFirst, {.placed = 1})).code(), Code::kGone) << "there is no fabric";
  EXPECT_EQ(Answered(Heads(RailBatchHead::kVerdict, 1, kFirst, none)).code(), Code::kGone);
  EXPECT_EQ(Answered(Heads(RailBatchHead::kFabric, 1, kFirst, none)).code(), Code::kGone);
}

TEST_F(LyingPeerTest, QuestionsThatAreNoneEndTheServersSide) {
  const auto asked = [&](const std::vector<std::byte>& bytes) {
    TestPair pair;
    TestSource source(pair.executor());
    auto serving = ServeRail(*pair.far, source);
    EXPECT_TRUE(pair.loop->BlockOn(SendAll(pair.executor(), *pair.near, bytes, pair.After(1'000'000))).ok());
    pair.near->Close();
    return pair.loop->BlockOn(std::move(serving)).code();
  };
  const auto batch = [](std::uint32_t items, std::uint32_t says, std::vector<std::byte> behind) {
    std::vector<std::byte> bytes(RailBatchHead::kBytes);
    RailBatchHead head;
    head.magic = RailBatchHead::kQuestions;
    head.items = items;
    head.bytes = says;
    head.remaining_us = 1'000;
    head.Store(bytes.data());
    bytes.insert(bytes.end(), behind.begin(), behind.end());
    return bytes;
  };
  EXPECT_EQ(asked({}), Code::kOk);
  EXPECT_EQ(asked(batch(0, 0, {})), Code::kInvalid);
  EXPECT_EQ(asked(batch(65, 0, {})), Code::kInvalid);
  EXPECT_EQ(asked(batch(1, 1u << 30, {})), Code::kInvalid);
  EXPECT_EQ(asked(batch(1, 2, {std::byte{5}, std::byte{0}})), Code::kInvalid) << "longer than its batch";
  EXPECT_EQ(asked(batch(1, 3, {std::byte{0}, std::byte{0}, std::byte{0}})), Code::kInvalid)
      << "bytes are left";
  const auto other = [&](std::uint32_t magic, std::uint32_t items, std::uint32_t says,
                         std::vector<std::byte> behind) {
    std::vector<std::byte> bytes = batch(items, says, std::move(behind));
    StoreAt(bytes.data(), 0, magic);
    return bytes;
  };
  std::vector<std::byte> endless = batch(1, 2, {std::byte{0}, std::byte{0}});
  StoreAt(endless.data(), 20, std::uint32_t{60'000'001});
  EXPECT_EQ(asked(endless), Code::kInvalid) << "it may take longer than any";
  EXPECT_EQ(asked(other(RailBatchHead::kHello, 0, 2, {std::byte{9}, std::byte{0}})), Code::kInvalid);
  EXPECT_EQ(asked(other(RailBatchHead::kHello, 0, 1u << 20, {})), Code::kInvalid);
  EXPECT_EQ(asked(other(RailBatchHead::kTaken, 1, 4, std::vector<std::byte>(4))), Code::kInvalid);
  EXPECT_EQ(asked(other(RailBatchHead::kTaken, 65, 520, std::vector<std::byte>(520))), Code::kInvalid);
  EXPECT_EQ(asked(other(RailBatchHead::kTaken, 1, 8, std::vector<std::byte>(8))), Code::kOk)
      << "of a batch that was given up nothing is left";
  EXPECT_EQ(asked(std::vector<std::byte>(24)), Code::kInvalid);
  EXPECT_EQ(asked(std::vector<std::byte>(7)), Code::kGone);
}

}  // namespace
}  // namespace cistern::net
