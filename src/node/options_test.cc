// SPDX-License-Identifier: Apache-2.0
#include "node/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory/host_memory.h"

namespace cistern {
namespace {

using ::testing::HasSubstr;

std::string Message(const Status& status) { return std::string(status.message()); }

TEST(NodeOptions, FileAndFlagAreOneTable) {
  NodeOptions options;
  EXPECT_TRUE(ApplyConfigText(options, "memory = \"256MiB\"\nmovers = 2\npoll = \"10us\"\n", "c.toml").ok());
  EXPECT_EQ(options.memory_bytes, 256u << 20);
  EXPECT_EQ(options.movers, 2u);
  EXPECT_EQ(options.poll_us, 10u);
}

TEST(NodeOptions, UnknownKeyNamesFileLineAndTheNearest) {
  NodeOptions options;
  Status status = ApplyConfigText(options, "movers = 2\nmemroy = \"1GiB\"\n", "c.toml");
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_THAT(Message(status), HasSubstr("c.toml:2"));
  EXPECT_THAT(Message(status), HasSubstr("memory"));
  EXPECT_EQ(options.movers, 1u) << "a broken file must change nothing";
}

TEST(NodeOptions, EveryFormOfAValueIsRead) {
  NodeOptions options;
  Status status = ApplyConfigText(options,
                                  "\xEF\xBB\xBF# a node\r\n\r\n  movers=2# two\r\n"
                                  "memory_dir = \"/srv/k\u00e4se \\\"#\\\\\"  # not the comment\n"
                                  "tenant = 'a'",
                                  "c.toml");
  EXPECT_TRUE(status.ok()) << Message(status);
  EXPECT_EQ(options.movers, 2u);
  EXPECT_EQ(options.memory_dir, "/srv/k\u00e4se \"#\\");
  EXPECT_EQ(options.tenant, "a");
}

TEST(NodeOptions, ABrokenLineIsNamedAndChangesNothing) {
  for (const char* broken :
       {"[node]", "[~A#", "\u00e4 = 1", "\ufe7f", "movers", "movers 2", "movers =", "movers = two",
        "movers = 2 3", "movers = 2.5", "tenant = \"a", "tenant = 'a", "tenant = \"\\q\"", "tenant = \"\\",
        "= 2", "movers = 99999999999999999999", "poll = \"1us\"\npoll = \"2us\""}) {
    NodeOptions options;
    Status status = ApplyConfigText(options, std::string("movers = 2\n") + broken, "c.toml");
    EXPECT_EQ(status.code(), Code::kInvalid) << broken;
    EXPECT_THAT(Message(status),
                HasSubstr(std::string_view(broken).starts_with("poll") ? "c.toml:3: " : "c.toml:2: "));
    EXPECT_EQ(options.movers, 1u) << broken;
  }
}

TEST(NodeOptions, SizeWithoutUnitIsRefused) {
  NodeOptions options;
  Status status = SetNodeOption(options, "--memory", "memory", "1024");
  EXPECT_THAT(Message(status), HasSubstr("memory"));
  EXPECT_THAT(Message(status), HasSubstr("1024"));
}

TEST(NodeOptions, MemoryAboveTheHostNamesBoth) {
  NodeOptions options;
  options.memory_bytes = 1ull << 50;
  Status status = ResolveNodeOptions(options);
  EXPECT_THAT(Message(status), HasSubstr("1024TiB"));
  EXPECT_THAT(Message(status), HasSubstr("above what this host gives"));
}

TEST(NodeOptions, DefaultIsAQuarter) {
  NodeOptions options;
  ASSERT_TRUE(ResolveNodeOptions(options).ok());
  EXPECT_EQ(options.memory_bytes, ReadHostMemory()->limit_bytes / 4);
}

TEST(NodeOptions, TenantNamesADirectory) {
  NodeOptions options;
  options.tenant = "../etc";
  EXPECT_THAT(Message(ResolveNodeOptions(options)), HasSubstr("../etc"));
}

}  // namespace
}  // namespace cistern
