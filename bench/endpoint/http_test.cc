// SPDX-License-Identifier: Apache-2.0
#include "endpoint/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "endpoint/measure.h"

namespace cistern {
namespace {

TEST(Http, BaseUrls) {
  for (const std::string_view url :
       {"http://host:8000", "http://host:8000/", "http://host:8000/v1", "http://host:8000/v1//"}) {
    EXPECT_EQ(BaseUrl(url).value(), "http://host:8000") << url;
  }
  EXPECT_EQ(BaseUrl("https://host/behind/v1").value(), "https://host/behind");
  for (const std::string_view url :
       {"", "host:8000", "ftp://host", "http://", "http://h:99999999", "http://h h", "http://h?q",
        "http://user:key@host", "file:///etc/passwd"}) {
    const Result<std::string> base = BaseUrl(url);
    ASSERT_FALSE(base) << url;
    EXPECT_EQ(base.error().code(), Code::kInvalid);
    EXPECT_EQ(base.error().message().find("key@"), std::string::npos) << "a key is in no message";
  }
}

TEST(Http, AKeyThatWouldBreakTheHeaderIsRefusedAndNotShown) {
  const auto client = HttpClient::Open({.api_key = "sk-1\r\nHost: other"});
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().message().find("sk-1"), std::string::npos);
}

TEST(Http, NamesOfModels) {
  EXPECT_THAT(ModelNames(R"({"object":"list","data":[{"id":"a"},{"no":1},{"id":7},{"id":"b"}]})").value(),
              testing::ElementsAre("a", "b"));
  EXPECT_TRUE(ModelNames(R"({"data":[]})").value().empty());
  for (const std::string_view body : {"", "{}", "[]", "{\"data\":{}}", "<html>"})
    EXPECT_FALSE(ModelNames(body));
}

}  // namespace
}  // namespace cistern
