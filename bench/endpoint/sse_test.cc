// SPDX-License-Identifier: Apache-2.0
#include "endpoint/sse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace cistern {
namespace {

using testing::ElementsAre;

// The events of `stream` when it arrives in pieces of `piece` bytes.
std::vector<std::string> Events(std::string_view stream, std::size_t piece) {
  std::vector<std::string> events;
  const auto keep = [&](std::string_view data) {
    events.emplace_back(data);
    return true;
  };
  SseParser parser;
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    EXPECT_TRUE(parser.Feed(stream.substr(at, piece), keep));
  }
  return events;
}

TEST(Sse, EventsAreTheSameWhereverTheStreamIsSplit) {
  const std::string_view stream =
      "\xef\xbb\xbf: a comment\r\nevent: x\r\ndata: {\"a\":1}\r\n\r\ndata:two\rdata: lines\r\rretry: 3\n\n"
      "data\n\ndata: [DONE]\n\nid: 7\ndata:  last\n\ndata: cut off\n";
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    EXPECT_THAT(Events(stream, piece), ElementsAre("{\"a\":1}", "two\nlines", "", "[DONE]", " last"))
        << piece;
  }
}

TEST(Sse, WithoutDataNothingIsAnEvent) {
  EXPECT_TRUE(Events("", 1).empty());
  EXPECT_TRUE(Events("\n\n\r\n: ping\n\nevent: done\n\n{\"object\": 1}", 2).empty());
}

TEST(Sse, AnEventWithoutEndIsBounded) {
  SseParser parser;
  const std::string part(1u << 20, 'x');
  const auto never = [](std::string_view) { return ADD_FAILURE(), true; };
  EXPECT_TRUE(parser.Feed("data: ", never));
  std::size_t fed = 0;
  while (parser.Feed(part, never)) ASSERT_LE(fed += part.size(), SseParser::kMaxEventBytes);
  EXPECT_FALSE(parser.Feed("\n\n", never)) << "what was broken once stays broken";
}

TEST(Sse, TheListenerMayEndIt) {
  SseParser parser;
  int events = 0;
  const auto once = [&](std::string_view) { return ++events, false; };
  EXPECT_FALSE(parser.Feed("data: 1\n\ndata: 2\n\n", once));
  EXPECT_FALSE(parser.Feed("data: 3\n\n", once));
  EXPECT_EQ(events, 1);
}

}  // namespace
}  // namespace cistern
