// SPDX-License-Identifier: Apache-2.0
#include "net/control_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <set>

#include "base/format.h"
#include "base/limits.h"
#include "base/random_bytes.h"
#include "base/step_budget.h"
#include "base/test_held_lane.h"
#include "net/fuzz_stream.h"
#include "net/test_pair.h"

namespace cistern::net {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> BytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Answers type 1 with what it was asked, type 2 once it is let, and no other.
class Echo final : public ControlHandler {
 public:
  explicit Echo(Executor& runs_on) : executor_(runs_on) {}
  Executor& executor() { return executor_; }

  Task<Result<std::vector<std::byte>>> Answer(std::uint16_t type, ConstPiece payload,
                                              Instant deadline) override {
    ++asked;
    last_deadline = deadline;
    if (type == 2) co_await let_go.Wait();
    if (type > 2) co_return Error(Code::kMismatch, Text("there is no question of type ", type));
    co_return std::vector<std::byte>(payload.begin(), payload.end());
  }
  void Notice(std::uint16_t type, ConstPiece payload) override {
    notices.emplace_back(type, std::vector<std::byte>(payload.begin(), payload.end()));
    noticed_in.insert(executor_.steps());
    if (on_notice) on_notice();
  }

  Event let_go;
  int asked = 0;
  Instant last_deadline;
  std::vector<std::pair<std::uint16_t, std::vector<std::byte>>> notices;
  std::set<std::uint64_t> noticed_in;  // steps
  std::function<void()> on_notice;

 private:
  Executor& executor_;
};

// Takes what has come at once, as TLS does a record, and gives it out though it was closed meanwhile.
class AheadStream final : public Stream {
 public:
  explicit AheadStream(std::unique_ptr<Stream> below) : below_(std::move(below)) {}
  Executor& executor() override { return below_->executor(); }
  Task<Result<std::size_t>> Receive(std::span<const Piece> into, Instant deadline) override {
    if (ahead_.empty()) {
      ahead_.resize(4096);
      const Piece all(ahead_);
      const auto bytes = co_await below_->Receive({&all, 1}, deadline);
      ahead_.resize(bytes ? *bytes : 0);
      if (ahead_.empty()) co_return bytes;
    }
    const std::size_t bytes = std::min(into[0].size(), ahead_.size());
    std::copy_n(ahead_.begin(), bytes, into[0].begin());
    ahead_.erase(ahead_.begin(), ahead_.begin() + static_cast<std::ptrdiff_t>(bytes));
    co_return bytes;
  }
  Task<Status> Send(std::span<const ConstPiece> pieces, Instant deadline) override {
    return below_->Send(pieces, deadline);
  }
  void Close() override { below_->Close(); }
  const std::string& peer() const override { return below_->peer(); }

 private:
  const std::unique_ptr<Stream> below_;
  std::vector<std::byte> ahead_;
};

class ControlConnectionTest : public ::testing::Test {
 public:
  Executor& executor() { return pair_.executor(); }

 protected:
  using Opened = Result<std::unique_ptr<ControlConnection>>;
  static Hello Named(std::string name, std::uint16_t lowest = 1, std::uint16_t highest = 1) {
    return {.process_number = name.size(),
            .member = std::move(name),
            .lowest_version = lowest,
            .highest_version = highest};
  }
  std::pair<Opened, Opened> OpenBoth(Hello near, Hello far) {
    auto other = ControlConnection::Open(executor(), std::move(pair_.far), std::move(far), there_,
                                         pair_.After(1'000'000), lane_);
    Opened one = pair_.loop->BlockOn(ControlConnection::Open(executor(), std::move(pair_.near),
                                                             std::move(near), here_, pair_.After(1'000'000)));
    return {std::move(one), pair_.loop->BlockOn(std::move(other))};
  }
  void Open() {
    auto [near, far] = OpenBoth(Named("a"), Named("bb"));
    ASSERT_TRUE(near.has_value() && far.has_value());
    near_ = std::move(*near);
    far_ = std::move(*far);
  }
  void TearDown() override {
    there_.let_go.Set();
    for (ControlConnection* connection : {near_.get(), far_.get()}) {
      if (connection != nullptr) pair_.loop->BlockOn(connection->Close());
    }
    static_cast<io::SimulatedLoop&>(*pair_.loop).RunUntilIdle();
  }
  static void AppendFrame(std::vector<std::byte>& out, FrameHead head, std::string_view payload) {
    head.payload_bytes = static_cast<std::uint32_t>(payload.size());
    const std::size_t at = out.size();
    out.resize(at + FrameHead::kBytes);
    head.Store(out.data() + at);
    Encoder(out).Bytes(std::as_bytes(std::span(payload)));
  }
  static std::vector<std::byte> HelloOfALiar(std::uint16_t highest = 1, std::string_view behind = {}) {
    std::vector<std::byte> hello;
    Encoder out(hello);
    out.U32(0x4f4c4843);
    out.U16(1);
    out.U16(highest);
    out.U64(7);
    out.String("liar");
    out.Bytes(std::as_bytes(std::span(behind)));
    std::vector<std::byte> bytes;
    AppendFrame(bytes, {.kind = FrameKind::kHello},
                std::string_view(reinterpret_cast<const char*>(hello.data()), hello.size()));
    return bytes;
  }
  // far_ anew, to a stream that has said its hello and says from now on what it likes.
  std::unique_ptr<Stream> OpenToLiar(const std::vector<std::byte>& bytes = HelloOfALiar()) {
    pair_.Connect();
    std::unique_ptr<Stream> raw = std::move(pair_.near);
    auto opening = ControlConnection::Open(executor(), std::make_unique<AheadStream>(std::move(pair_.far)),
                                           Named("bb"), there_, pair_.After(1'000'000));
    EXPECT_TRUE(pair_.loop->BlockOn(SendAll(executor(), *raw, bytes, pair_.After(1'000'000))).ok());
    auto opened = pair_.loop->BlockOn(std::move(opening));
    EXPECT_TRUE(opened.has_value());
    far_ = std::move(*opened);
    return raw;
  }
  Task<Status> WaitFor(ControlConnection& connection) {
    co_await connection.Ended();
    co_return connection.status();
  }
  Task<void> Pass(std::int64_t us) {
    Event never;
    (void)co_await never.Wait(pair_.After(us));
  }
  Result<std::vector<std::byte>> AskNow(std::uint16_t type, std::string_view text,
                                        std::int64_t us = 1'000'000) {
    return pair_.loop->BlockOn(near_->Ask(type, BytesOf(text), pair_.After(us)));
  }

  using Asking = Task<Result<std::vector<std::byte>>>;
  // Questions as many as are answered at once; all have come to there_.
  std::vector<Asking> AskAsManyAsMay() {
    std::vector<Asking> asking;
    for (std::size_t i = 0; i < ControlLimits::kQuestions; ++i)
      asking.push_back(near_->Ask(1, BytesOf("x"), pair_.After(10'000'000)));
    pair_.loop->BlockOn(Pass(100'000));
    return asking;
  }

  TestPair pair_;
  Lane* lane_ = nullptr;  // of what there_ answers
  Echo here_{pair_.executor()}, there_{pair_.executor()};
  std::unique_ptr<ControlConnection> near_, far_;
};

TEST_F(ControlConnectionTest, BothKnowEachOtherAndTheHighestCommonVersion) {
  auto [near, far] = OpenBoth(Named("a", 1, 3), Named("bb", 2, 5));
  ASSERT_TRUE(near.has_value() && far.has_value());
  near_ = std::move(*near);
  far_ = std::move(*far);
  EXPECT_EQ(near_->other().member, "bb");
  EXPECT_EQ(far_->other().process_number, 1u);
  EXPECT_EQ(near_->version(), 3);
  EXPECT_EQ(far_->version(), 3);
}

TEST_F(ControlConnectionTest, NoCommonVersionIsNamedOnBothSides) {
  auto [near, far] = OpenBoth(Named("a", 1, 2), Named("bb", 3, 4));
  ASSERT_FALSE(near.has_value() || far.has_value());
  EXPECT_EQ(near.error().code(), Code::kMismatch);
  EXPECT_THAT(std::string(near.error().message()), HasSubstr("bb"));
  EXPECT_THAT(std::string(near.error().message()), HasSubstr("3 to 4, this one 1 to 2"));
  EXPECT_EQ(far.error().code(), Code::kMismatch);
  pair_.Connect();
  auto strange = OpenBoth(Named("a", 1, 2), Named("b\x1b[2J", 3, 4));
  EXPECT_THAT(std::string(strange.first.error().message()), HasSubstr("member b?[2J at"));
}

TEST_F(ControlConnectionTest, FieldsThatALaterVersionHasBehindItsHelloAreSkipped) {
  const std::unique_ptr<Stream> later = OpenToLiar(HelloOfALiar(3, "what it has beside"));
  EXPECT_EQ(far_->other().member, "liar");
  EXPECT_EQ(far_->other().highest_version, 3);
  EXPECT_EQ(far_->version(), 1);
}

TEST_F(ControlConnectionTest, QuestionsAreAnsweredInAnyOrder) {
  Open();
  auto slow = near_->Ask(2, BytesOf("slow"), pair_.After(1'000'000));
  EXPECT_EQ(*AskNow(1, "fast"), BytesOf("fast"));
  there_.let_go.Set();
  EXPECT_EQ(*pair_.loop->BlockOn(std::move(slow)), BytesOf("slow"));
  auto unknown = AskNow(9, "");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().code(), Code::kMismatch);
  EXPECT_THAT(std::string(unknown.error().message()), HasSubstr("no question of type 9"));
}

TEST_F(ControlConnectionTest, AnAnswerThatIsLateIsDropped) {
  Open();
  EXPECT_EQ(AskNow(2, "late", 1'000).error().code(), Code::kTooLate);
  there_.let_go.Set();
  pair_.loop->BlockOn(Pass(100'000));
  EXPECT_EQ(*AskNow(1, "on"), BytesOf("on"));
}

TEST_F(ControlConnectionTest, P5AQuestionWaitsForItsTurnInTheLaneAndNothingElseDoes) {
  HeldLane lane(executor());
  lane_ = &lane;
  Open();
  const std::string text(200'000, 'x');
  auto asking = near_->Ask(1, BytesOf(text), pair_.After(10'000'000));
  ASSERT_TRUE(near_->Tell(7, {}).ok());
  pair_.loop->BlockOn(Pass(2 * ControlLimits::kSilenceUs));
  EXPECT_EQ(there_.asked, 0);
  EXPECT_EQ(there_.notices.size(), 1u);
  EXPECT_GE(lane.charged, text.size() / kBytesPerTouch);
  auto back = far_->Ask(1, BytesOf("back"), pair_.After(1'000'000));
  EXPECT_EQ(*pair_.loop->BlockOn(std::move(back)), BytesOf("back"));
  EXPECT_TRUE(near_->status().ok() && far_->status().ok());
  lane.LetGo();
  EXPECT_EQ(*pair_.loop->BlockOn(std::move(asking)), BytesOf(text));
  EXPECT_EQ(lane.users, 0);
}

TEST_F(ControlConnectionTest, QuestionThatIsAnsweredIsNoneOfTheBoundThoughOthersWaitInTheLane) {
  HeldLane lane(executor());
  lane_ = &lane;
  Open();
  std::vector<Asking> asking = AskAsManyAsMay();
  lane.LetOneGo();
  EXPECT_TRUE(pair_.loop->BlockOn(std::move(asking.front())).has_value());
  asking.front() = near_->Ask(1, BytesOf("one more"), pair_.After(10'000'000));
  pair_.loop->BlockOn(Pass(100'000));
  lane.LetGo();
  for (auto& one : asking) EXPECT_TRUE(pair_.loop->BlockOn(std::move(one)).has_value());
}

TEST_F(ControlConnectionTest, P5WhatWaitsInTheLaneOfAConnectionThatEndsIsNotDone) {
  HeldLane lane(executor());
  lane_ = &lane;
  Open();
  std::vector<Asking> asking = AskAsManyAsMay();
  EXPECT_GE(lane.users, static_cast<int>(ControlLimits::kQuestions));
  Task<void> closing = near_->Close();
  for (auto& one : asking) EXPECT_EQ(pair_.loop->BlockOn(std::move(one)).error().code(), Code::kGone);
  pair_.loop->BlockOn(std::move(closing));
  (void)pair_.loop->BlockOn(WaitFor(*far_));
  lane.LetGo();
  pair_.loop->BlockOn(far_->Close());
  EXPECT_EQ(there_.asked, 0);
  EXPECT_EQ(lane.users, 0);
}

TEST_F(ControlConnectionTest, P5AConnectionThatIsDroppedLeavesNothingInTheLane) {
  HeldLane lane(executor());
  lane_ = &lane;
  Open();
  auto asking = near_->Ask(1, BytesOf("x"), pair_.After(10'000'000));
  pair_.loop->BlockOn(Pass(100'000));
  EXPECT_GT(lane.users, 0);
  far_.reset();
  EXPECT_EQ(lane.users, 0);
  EXPECT_EQ(pair_.loop->BlockOn(std::move(asking)).error().code(), Code::kGone);
}

TEST_F(ControlConnectionTest, P5AQuestionWhoseTurnComesTooLateIsNotAnswered) {
  HeldLane lane(executor());
  lane_ = &lane;
  Open();
  EXPECT_EQ(AskNow(1, "late", 1'000).error().code(), Code::kTooLate);
  pair_.loop->BlockOn(Pass(100'000));
  lane.LetGo();
  EXPECT_EQ(*AskNow(1, "on"), BytesOf("on"));
  EXPECT_EQ(there_.asked, 1);
}

TEST_F(ControlConnectionTest, P5EachMessageIsAStepOfItsOwn) {
  Open();
  const std::string notice(6'000, 'x');
  for (std::uint16_t i = 0; i < 100; ++i) ASSERT_TRUE(far_->Tell(i, BytesOf(notice)).ok());
  pair_.loop->BlockOn(Pass(100'000));
  ASSERT_EQ(here_.notices.size(), 100u);
  EXPECT_EQ(here_.noticed_in.size(), 100u);
}

TEST_F(ControlConnectionTest, P5ALongMessageIsTakenInSteps) {
  std::vector<std::byte> bytes = HelloOfALiar();
  AppendFrame(bytes, {.kind = FrameKind::kNotice}, std::string(ControlLimits::kPayloadBytes, 'x'));
  const FuzzStream::Options all_at_once{.step = bytes.size(), .at_once = true, .falls_silent = true};
  const std::uint64_t begun_in = executor().steps();
  auto opened = pair_.loop->BlockOn(
      ControlConnection::Open(executor(), std::make_unique<FuzzStream>(executor(), bytes, all_at_once),
                              Named("bb"), there_, pair_.After(1'000'000)));
  ASSERT_TRUE(opened.has_value());
  far_ = std::move(*opened);
  pair_.loop->BlockOn(Pass(100'000));
  ASSERT_EQ(there_.notices.size(), 1u);
  EXPECT_GE(*there_.noticed_in.begin() - begun_in, ControlLimits::kPayloadBytes / kStepBytes);
  pair_.loop->BlockOn(far_->Close());
  far_.reset();
}

TEST_F(ControlConnectionTest, NoticesKeepTheirOrderAndUnknownOnesHarmNobody) {
  Open();
  for (std::uint16_t i = 0; i < 100; ++i) EXPECT_TRUE(far_->Tell(i, BytesOf("x")).ok());
  pair_.loop->BlockOn(Pass(100'000));
  ASSERT_EQ(here_.notices.size(), 100u);
  for (std::uint16_t i = 0; i < 100; ++i) EXPECT_EQ(here_.notices[i].first, i);
}

TEST_F(ControlConnectionTest, MoreQuestionsThanTheBoundAreBusy) {
  Open();
  std::vector<Task<Result<std::vector<std::byte>>>> asks;
  for (std::size_t i = 0; i <= ControlLimits::kQuestions; ++i) {
    asks.push_back(near_->Ask(2, {}, pair_.After(10'000'000)));
  }
  auto busy = pair_.loop->BlockOn(std::move(asks.back()));
  ASSERT_FALSE(busy.has_value());
  EXPECT_EQ(busy.error().code(), Code::kBusy);
  asks.pop_back();
  there_.let_go.Set();
  for (auto& ask : asks) EXPECT_TRUE(pair_.loop->BlockOn(std::move(ask)).has_value());
}

TEST_F(ControlConnectionTest, WhoTakesNothingIsBusyAndThenGone) {
  Open();
  pair_.network.Cut("here", "there");
  const std::vector<std::byte> large(ControlLimits::kPayloadBytes);
  EXPECT_EQ(near_->Tell(1, std::vector<std::byte>(large.size() + 1)).code(), Code::kInvalid);
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = near_->Tell(1, large);
  EXPECT_EQ(status.code(), Code::kBusy);
  EXPECT_EQ(pair_.loop->BlockOn(WaitFor(*near_)).code(), Code::kGone);
}

TEST_F(ControlConnectionTest, HeartbeatsKeepAQuietConnectionAndSilenceEndsItWithinASecond) {
  Open();
  pair_.loop->BlockOn(Pass(60'000'000));
  EXPECT_TRUE(near_->status().ok() && far_->status().ok());
  const Instant cut = pair_.clock.Now();
  // One way alone: who hears nothing ends it, and so the other one learns of it.
  pair_.network.Cut("there", "here");
  EXPECT_THAT(std::string(pair_.loop->BlockOn(WaitFor(*near_)).message()), HasSubstr("silent for 750 ms"));
  EXPECT_EQ(pair_.loop->BlockOn(WaitFor(*far_)).code(), Code::kGone);
  EXPECT_LE(pair_.clock.Now().UsSince(cut), 1'000'000);
}

TEST_F(ControlConnectionTest, TheEndOfTheConnectionEndsWhoAsks) {
  Open();
  auto ask = near_->Ask(2, {}, pair_.After(10'000'000));
  pair_.network.Stop("there");
  EXPECT_EQ(pair_.loop->BlockOn(std::move(ask)).error().code(), Code::kGone);
  EXPECT_EQ(AskNow(1, "").error().code(), Code::kGone);
  EXPECT_EQ(near_->Tell(1, {}).code(), Code::kGone);
}

TEST_F(ControlConnectionTest, CloseWaitsUntilWhoAsksHasGoneOn) {
  Open();
  const std::vector<std::byte> payload = BytesOf("never answered");
  auto asked = near_->Ask(2, payload, pair_.After(1'000'000));
  struct Closing {
    static Task<void> Run(Executor&, std::unique_ptr<ControlConnection> connection) {
      co_await connection->Close();
    }
  };
  pair_.loop->BlockOn(Closing::Run(executor(), std::move(near_)));
  EXPECT_EQ(pair_.loop->BlockOn(std::move(asked)).error().code(), Code::kGone);
  there_.let_go.Set();
}

TEST_F(ControlConnectionTest, StrangersAreRefused) {
  std::vector<std::byte> bytes(64);
  for (int round = 0; round < 200; ++round) {
    pair_.Connect();
    FillRandom(static_cast<std::uint64_t>(round), bytes);
    // Half of them begin as a hello would.
    if (round % 2 == 0) FrameHead{.payload_bytes = 40, .kind = FrameKind::kHello}.Store(bytes.data());
    ASSERT_TRUE(pair_.loop->BlockOn(SendAll(executor(), *pair_.near, bytes, pair_.After(1'000'000))).ok());
    auto opened = pair_.loop->BlockOn(ControlConnection::Open(executor(), std::move(pair_.far), Named("bb"),
                                                              there_, pair_.After(1'000'000)));
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code(), Code::kGone);
  }
}

TEST_F(ControlConnectionTest, FramesThatLieEndTheConnectionAndNothingElse) {
  const auto after_hello = [&](const FrameHead& head) {
    const std::unique_ptr<Stream> liar = OpenToLiar();
    std::vector<std::byte> bytes(FrameHead::kBytes);
    head.Store(bytes.data());
    EXPECT_TRUE(pair_.loop->BlockOn(SendAll(executor(), *liar, bytes, pair_.After(1'000'000))).ok());
    std::string why(pair_.loop->BlockOn(WaitFor(*far_)).message());
    pair_.loop->BlockOn(far_->Close());
    far_.reset();
    return why;
  };
  EXPECT_THAT(after_hello({.payload_bytes = 1u << 30}), HasSubstr("the limit is"));
  EXPECT_THAT(after_hello({.kind = FrameKind::kHello}), HasSubstr("a second time"));
  // Answers to nobody and kinds of later versions are skipped, so that silence is what ends it.
  EXPECT_THAT(after_hello({.kind = FrameKind::kAnswer, .code = 255, .id = 77}), HasSubstr("silent"));
  EXPECT_THAT(after_hello({.kind = static_cast<FrameKind>(99)}), HasSubstr("silent"));
}

TEST_F(ControlConnectionTest, NoQuestionIsAnsweredForLongerThanAnyMayTake) {
  const std::unique_ptr<Stream> liar = OpenToLiar();
  std::vector<std::byte> bytes;
  AppendFrame(bytes, {.kind = FrameKind::kQuestion, .type = 2, .id = 1, .remaining_us = UINT32_MAX}, "");
  EXPECT_TRUE(pair_.loop->BlockOn(SendAll(executor(), *liar, bytes, pair_.After(1'000'000))).ok());
  pair_.loop->BlockOn(Pass(100'000));
  ASSERT_EQ(there_.asked, 1);
  EXPECT_LE(there_.last_deadline, pair_.After(60'000'000));
}

TEST_F(ControlConnectionTest, TheFirstAnswerCountsThoughOthersAndTheEndCameWithIt) {
  for (const Code first : {Code::kOk, Code::kDenied}) {
    const std::unique_ptr<Stream> liar = OpenToLiar();
    auto ask = far_->Ask(1, {}, pair_.After(1'000'000));
    std::vector<std::byte> bytes;
    AppendFrame(bytes, {.kind = FrameKind::kAnswer, .code = static_cast<std::uint8_t>(first), .id = 1}, "1");
    AppendFrame(bytes, {.kind = FrameKind::kAnswer, .id = 1}, "2");
    AppendFrame(bytes, {.kind = FrameKind::kAnswer, .code = static_cast<std::uint8_t>(Code::kMiss), .id = 1},
                "3");
    AppendFrame(bytes, {.kind = FrameKind::kHello}, "");
    EXPECT_TRUE(pair_.loop->BlockOn(SendAll(executor(), *liar, bytes, pair_.After(1'000'000))).ok());
    const auto answer = pair_.loop->BlockOn(std::move(ask));
    EXPECT_EQ(far_->status().code(), Code::kGone);
    EXPECT_EQ(answer ? Code::kOk : answer.error().code(), first);
    EXPECT_TRUE(!answer || *answer == BytesOf("1"));
    pair_.loop->BlockOn(far_->Close());
    far_.reset();
  }
}

// As where a node stood: what others have asked meanwhile lies there together.
TEST_F(ControlConnectionTest, WhatHasComeIsNotHeardBehindTheEnd) {
  const std::unique_ptr<Stream> liar = OpenToLiar();
  std::optional<Task<void>> closing;
  there_.on_notice = [&] {
    if (!closing) closing = far_->Close();
  };
  std::vector<std::byte> bytes;
  AppendFrame(bytes, {.kind = FrameKind::kNotice, .type = 1}, "");
  AppendFrame(bytes, {.kind = FrameKind::kQuestion, .type = 1, .id = 1, .remaining_us = 1'000'000}, "");
  AppendFrame(bytes, {.kind = FrameKind::kNotice, .type = 1}, "");
  EXPECT_TRUE(pair_.loop->BlockOn(SendAll(executor(), *liar, bytes, pair_.After(1'000'000))).ok());
  pair_.loop->BlockOn(Pass(100'000));
  ASSERT_TRUE(closing.has_value());
  pair_.loop->BlockOn(std::move(*closing));
  EXPECT_EQ(there_.asked, 0);
  EXPECT_EQ(there_.notices.size(), 1u);
  far_.reset();
}

TEST_F(ControlConnectionTest, WhatTheOtherSideSaysOfAnErrorIsShownAsShortText) {
  const std::unique_ptr<Stream> liar = OpenToLiar();
  auto ask = far_->Ask(1, {}, pair_.After(1'000'000));
  std::vector<std::byte> bytes;
  AppendFrame(bytes, {.kind = FrameKind::kAnswer, .code = static_cast<std::uint8_t>(Code::kBusy), .id = 1},
              "a\x1b[2J" + std::string(3'000, 'b'));
  EXPECT_TRUE(pair_.loop->BlockOn(SendAll(executor(), *liar, bytes, pair_.After(1'000'000))).ok());
  const auto answer = pair_.loop->BlockOn(std::move(ask));
  ASSERT_FALSE(answer.has_value());
  EXPECT_THAT(std::string(answer.error().message()), HasSubstr("a?[2Jbbb"));
  EXPECT_LT(answer.error().message().size(), 2'000u);
}

TEST_F(ControlConnectionTest, AnswerWithACodeOfALaterVersionIsAMismatchAndEndsNothing) {
  const std::unique_ptr<Stream> liar = OpenToLiar();
  auto first = far_->Ask(1, {}, pair_.After(1'000'000));
  auto second = far_->Ask(1, {}, pair_.After(1'000'000));
  std::vector<std::byte> bytes;
  AppendFrame(bytes, {.kind = FrameKind::kAnswer, .code = 200, .id = 1}, "a reason of then");
  AppendFrame(bytes, {.kind = FrameKind::kAnswer, .id = 2}, "here");
  EXPECT_TRUE(pair_.loop->BlockOn(SendAll(executor(), *liar, bytes, pair_.After(1'000'000))).ok());
  const auto answer = pair_.loop->BlockOn(std::move(first));
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code(), Code::kMismatch);
  EXPECT_THAT(std::string(answer.error().message()), HasSubstr("a reason of then"));
  EXPECT_EQ(*pair_.loop->BlockOn(std::move(second)), BytesOf("here"));
}

TEST_F(ControlConnectionTest, WhoIsNotTakenTheAnswerThatHeIsBusyIsGone) {
  Open();
  std::vector<Task<Result<std::vector<std::byte>>>> asks;
  for (std::size_t i = 0; i < ControlLimits::kQuestions; ++i)
    asks.push_back(near_->Ask(2, {}, pair_.After(10'000'000)));
  while (there_.asked < static_cast<int>(ControlLimits::kQuestions)) pair_.loop->Turn();
  pair_.network.Cut("there", "here");
  const std::vector<std::byte> large(ControlLimits::kPayloadBytes);
  const auto fill = [&](std::size_t least) {
    for (std::size_t bytes = large.size(); bytes >= least; bytes /= 2) {
      while (far_->Tell(1, std::span(large).first(bytes)).ok()) continue;
    }
  };
  // More than the network takes is on its way, and what follows waits behind it.
  for (int i = 0; i < 2; ++i) {
    fill(large.size());
    pair_.loop->BlockOn(Pass(1'000));
  }
  fill(1);
  asks.push_back(near_->Ask(2, {}, pair_.After(10'000'000)));
  const Status status = pair_.loop->BlockOn(WaitFor(*far_));
  EXPECT_EQ(status.code(), Code::kGone);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has not taken"));
  for (auto& ask : asks) EXPECT_FALSE(pair_.loop->BlockOn(std::move(ask)).has_value());
}

}  // namespace
}  // namespace cistern::net
