// SPDX-License-Identifier: Apache-2.0
#include "workload/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"

namespace cistern::workload {
namespace {

TraceReader ReaderOf(std::string text) {
  std::FILE* file = std::tmpfile();
  std::fwrite(text.data(), 1, text.size(), file);
  std::rewind(file);
  return TraceReader(file, "some.jsonl");
}

// The message for a trace whose third line is `line`.
std::string Refusal(std::string_view line) {
  const std::string_view good =
      R"({"timestamp": 1, "input_length": 513, "output_length": 2, "hash_ids": [7, 8]})";
  TraceReader reader = ReaderOf(Text(good, "\n\n", line, "\n", good, "\n"));
  Request request;
  EXPECT_TRUE(reader.Next(request).value());
  const Result<bool> next = reader.Next(request);
  if (next) return "accepted";
  EXPECT_EQ(next.error().code(), Code::kInvalid);
  EXPECT_FALSE(reader.Next(request).value()) << "an error ends the trace";
  return std::string(next.error().message());
}

TEST(Trace, ReadsRequestsAndPassesOverWhatItDoesNotKnow) {
  TraceReader reader = ReaderOf(
      "{\"timestamp\": 27, \"input_length\": 1025, \"output_length\": 0, \"hash_ids\": [9, "
      "18446744073709551615, 3]}\r\n"
      "\n"
      "  {\"session\": 4, \"model\": {\"name\": \"x\"}, \"timestamp\": 30, \"input_length\": 100, "
      "\"output_length\": 5, \"hash_ids\": []}");
  Request request;
  ASSERT_TRUE(reader.Next(request).value());
  EXPECT_EQ(request, (Request{27, 1025, 0, std::nullopt, {9, ~std::uint64_t{0}, 3}}));
  ASSERT_TRUE(reader.Next(request).value());
  EXPECT_EQ(request, (Request{30, 100, 5, 4, {}}));
  EXPECT_FALSE(reader.Next(request).value());
  EXPECT_FALSE(reader.Next(request).value());
}

TEST(Trace, AByteOrderMarkBeforeTheFirstLineIsPassedOver) {
  const std::string_view line = R"({"timestamp": 1, "input_length": 1, "output_length": 2, "hash_ids": [7]})";
  TraceReader reader = ReaderOf(Text("\xef\xbb\xbf", line, "\n\xef\xbb\xbf", line));
  Request request;
  EXPECT_TRUE(reader.Next(request).value());
  EXPECT_THAT(std::string(reader.Next(request).error().message()),
              testing::StartsWith("some.jsonl:2: is not JSON"));
}

TEST(Trace, LinesLargerThanTheReadBufferArriveWhole) {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    text +=
        Text(R"({"timestamp": )", i, R"(, "input_length": 102400000, "output_length": 1, "hash_ids": [0)");
    for (int id = 1; id < 100'000; ++id) text += Text(",", id);
    text += "]}\n";
  }
  TraceReader reader = ReaderOf(text);
  Request request;
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(reader.Next(request).value());
    EXPECT_EQ(request.timestamp_ms, i);
    ASSERT_EQ(request.hash_ids.size(), 100'000u);
    EXPECT_EQ(request.hash_ids.back(), 99'999u);
  }
  EXPECT_FALSE(reader.Next(request).value());
}

TEST(BadInput, BrokenTraceLineIsNamedWithItsNumber) {
  const std::string form =
      R"(: expected an object of the form {"timestamp": ms, "input_length": tokens, "output_length": tokens, )"
      R"("hash_ids": [block, ...]})";
  EXPECT_EQ(Refusal(R"({"timestamp": 1, )"),
            "some.jsonl:3: is not JSON (incomplete JSON at column 18)" + form);
  EXPECT_EQ(Refusal(R"({"timestamp": x})"), "some.jsonl:3: is not JSON (syntax error at column 15)" + form);
  EXPECT_EQ(Refusal(R"({} {})"), "some.jsonl:3: is not JSON (extra data at column 4)" + form);
  EXPECT_EQ(Refusal("[1]"), "some.jsonl:3: is an array" + form);
  EXPECT_EQ(Refusal(R"({"timestamp": 1, "input_length": 1, "output_length": 1})"),
            "some.jsonl:3: hash_ids is missing" + form);
  EXPECT_EQ(Refusal(R"({"input_length": 1, "output_length": 1, "hash_ids": []})"),
            "some.jsonl:3: timestamp is missing" + form);
}

TEST(BadInput, WrongTraceValueIsNamedWithItsLimit) {
  EXPECT_EQ(Refusal(R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []})"),
            "some.jsonl:3: timestamp is -1: expected a whole number from 0 to 9007199254740992");
  EXPECT_EQ(Refusal(R"({"timestamp": 1, "input_length": 1.5, "output_length": 1, "hash_ids": []})"),
            "some.jsonl:3: input_length is 1.5E0: expected a whole number from 0 to 1073741824");
  EXPECT_EQ(Refusal(R"({"timestamp": 1, "input_length": 1, "output_length": 1073741825, "hash_ids": []})"),
            "some.jsonl:3: output_length is 1073741825: expected a whole number from 0 to 1073741824");
  EXPECT_EQ(Refusal(R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 4})"),
            "some.jsonl:3: hash_ids is 4: expected an array, one whole number a block");
  EXPECT_EQ(Refusal(R"({"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [3, "a"]})"),
            "some.jsonl:3: hash_ids[1] is \"a\": expected a whole number from 0 to 18446744073709551615");
  EXPECT_EQ(
      Refusal(R"({"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2, 3]})"),
      "some.jsonl:3: hash_ids has 3 blocks: expected at most 2 for input_length 600 at 512 tokens a block");
  for (const std::string_view ids : {"[5, 9, 5]", "[5, 5]", "[9, 5, 5]"}) {
    EXPECT_EQ(
        Refusal(Text(R"({"timestamp": 1, "input_length": 2000, "output_length": 1, "hash_ids": )", ids, "}")),
        Text("some.jsonl:3: hash_ids[", ids == "[5, 5]" ? 1 : 2, "] is 5, as hash_ids[",
             ids[1] == '5' ? 0 : 1, "] is: expected an id of its own for each block of a prompt"));
  }
  EXPECT_EQ(
      Refusal(R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [], "session": "a"})"),
      "some.jsonl:3: session is \"a\": expected a whole number from 0 to 18446744073709551615");
}

TEST(BadInput, ABlockAfterTwoOthersIsNamedWithItsLine) {
  const auto refusal = [](std::string_view ids) {
    return Refusal(
        Text(R"({"timestamp": 1, "input_length": 2000, "output_length": 1, "hash_ids": )", ids, "}"));
  };
  const std::string form =
      ": expected an id to stand for its block and all before it, as KV does; hash each block together with "
      "the id before it";
  EXPECT_EQ(refusal("[7, 8, 9]"), "accepted");
  EXPECT_EQ(refusal("[5, 8]"),
            "some.jsonl:3: hash_ids[1] is 8, after 5, and in an earlier line after 7" + form);
  EXPECT_EQ(refusal("[8]"),
            "some.jsonl:3: hash_ids[0] is 8, first in its prompt, and in an earlier line after 7" + form);
  EXPECT_EQ(refusal("[5, 7]"),
            "some.jsonl:3: hash_ids[1] is 7, after 5, and in an earlier line first in its prompt" + form);
}

TEST(BadInput, TraceThatGoesBackInTimeIsNamedWithItsNumber) {
  const auto line = [](int at) {
    return Text(R"({"timestamp": )", at, R"(, "input_length": 1, "output_length": 1, "hash_ids": []})", "\n");
  };
  TraceReader reader = ReaderOf(line(5) + line(5) + line(4) + line(6));
  Request request;
  EXPECT_TRUE(reader.Next(request).value());
  EXPECT_TRUE(reader.Next(request).value());
  EXPECT_EQ(
      reader.Next(request).error().message(),
      "some.jsonl:3: timestamp is 4, before the 5 of the request before it: sort the trace by timestamp");
  EXPECT_FALSE(reader.Next(request).value());
}

TEST(BadInput, EndlessTraceLineIsRefusedInBoundedMemory) {
  TraceReader reader = ReaderOf(std::string(kMaxTraceLineBytes + (1 << 20), ' '));
  Request request;
  EXPECT_EQ(reader.Next(request).error().message(),
            "some.jsonl:1: is longer than 4MiB: expected one request a line");
}

TEST(BadInput, MissingTraceAndDirectoryAreNamed) {
  const Result<TraceReader> missing = TraceReader::Open("no/such.jsonl");
  EXPECT_EQ(missing.error().code(), Code::kInvalid);
  EXPECT_EQ(missing.error().message(),
            "trace no/such.jsonl: No such file or directory: give a file of JSON lines, or "
            "generated:sessions=200 for a made one");
  Result<TraceReader> directory = TraceReader::Open(".");
  ASSERT_TRUE(directory.has_value());
  Request request;
  const Status refused = directory->Next(request).error();
  EXPECT_EQ(refused.message(), ".:1: Is a directory");
  EXPECT_EQ(refused.code(), Code::kInvalid);
}

}  // namespace
}  // namespace cistern::workload
