// SPDX-License-Identifier: Apache-2.0
#include "endpoint/http.h"

#include <curl/curl.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "base/nearest.h"

namespace cistern {
namespace {

constexpr std::size_t kMaxAnswerBytes = 64u << 20;  // of one that is kept whole

struct SlistFree {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
struct EasyFree {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};

// Each transfer has a connection of its own; the usual soft limit of 1,024 descriptors would be near.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // what it does not give is what it was
}

bool IsLoopback(std::string_view url) {
  const std::string_view host = url.substr(url.find("://") + 3);
  return host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]");
}

// Keeps a short answer whole.
class Whole final : public HttpListener {
 public:
  bool OnBytes(long, std::string_view bytes) override {
    if (body.size() + bytes.size() > kMaxAnswerBytes) return false;
    body.append(bytes);
    return true;
  }
  void OnEnd(const HttpEnd& ended) override {
    end = ended;
    done = true;
  }

  std::string body;
  HttpEnd end;
  bool done = false;
};

}  // namespace

struct HttpClient::Impl {
  struct Transfer {
    std::unique_ptr<CURL, EasyFree> easy;
    std::string body;
    HttpListener* listener = nullptr;
    bool refused = false;  // the listener wanted no more
    char error[CURL_ERROR_SIZE] = "";
  };

  explicit Impl(HttpOptions given) : options(std::move(given)) {}
  ~Impl() {
    for (auto& [id, transfer] : transfers) curl_multi_remove_handle(multi, transfer->easy.get());
    if (multi) curl_multi_cleanup(multi);
    curl_global_cleanup();
  }

  static std::size_t Write(char* bytes, std::size_t, std::size_t count, void* given) {
    Transfer& transfer = *static_cast<Transfer*>(given);
    long status = 0;
    curl_easy_getinfo(transfer.easy.get(), CURLINFO_RESPONSE_CODE, &status);
    transfer.refused = !transfer.listener->OnBytes(status, {bytes, count});
    return transfer.refused ? CURL_WRITEFUNC_ERROR : count;
  }

  Id Start(const std::string& url, bool post, std::string body, HttpListener& listener) {
    auto transfer = std::make_unique<Transfer>();
    transfer->easy.reset(curl_easy_init());
    transfer->body = std::move(body);
    transfer->listener = &listener;
    CURL* easy = transfer->easy.get();
    curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    // One connection a request in flight, as users have.
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_us / 1000));
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->error);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Impl::Write);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer.get());
    if (!options.authorities_file.empty()) {
      curl_easy_setopt(easy, CURLOPT_CAINFO, options.authorities_file.c_str());
    }
    if (IsLoopback(url)) curl_easy_setopt(easy, CURLOPT_PROXY, "");  // no proxy can reach this host's own
    if (post) {
      curl_easy_setopt(easy, CURLOPT_POST, 1L);
      curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(transfer->body.size()));
      curl_easy_setopt(easy, CURLOPT_POSTFIELDS, transfer->body.data());
    }
    const Id id = next_id++;
    curl_easy_setopt(easy, CURLOPT_PRIVATE, reinterpret_cast<void*>(id));
    curl_multi_add_handle(multi, easy);
    transfers.emplace(id, std::move(transfer));
    return id;
  }

  std::unique_ptr<Transfer> Take(Id id) {
    auto found = transfers.find(id);
    if (found == transfers.end()) return nullptr;
    std::unique_ptr<Transfer> transfer = std::move(found->second);
    transfers.erase(found);
    curl_multi_remove_handle(multi, transfer->easy.get());
    return transfer;
  }

  // Tells listeners of what has ended; whether any has.
  bool TellEnds() {
    bool any = false;
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      void* given = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &given);
      const std::unique_ptr<Transfer> transfer = Take(reinterpret_cast<Id>(given));
      HttpEnd end;
      curl_easy_getinfo(transfer->easy.get(), CURLINFO_RESPONSE_CODE, &end.status);
      end.broken = code != CURLE_OK && !transfer->refused;
      if (end.broken) end.reason = transfer->error[0] ? transfer->error : curl_easy_strerror(code);
      if (code == CURLE_PEER_FAILED_VERIFICATION) end.reason += " (SSL_CERT_FILE names other authorities)";
      transfer->listener->OnEnd(end);
      any = true;
    }
    return any;
  }

  Result<HttpAnswer> Fetch(HttpClient& client, const std::string& url, bool post, std::int64_t timeout_us,
                           int wake_fd) {
    Whole whole;
    const Instant until = clock.Now().PlusUs(timeout_us);
    const Id id = Start(url, post, "", whole);
    while (!whole.done) {
      const std::int64_t left_us = until.UsSince(clock.Now());
      Status status = left_us > 0 ? client.Run(left_us, wake_fd)
                                  : Status(Code::kTooLate,
                                           Text(url, " does not answer within ", timeout_us / 1000, " ms"));
      if (!status.ok() || (!whole.done && woken)) {
        Take(id);
        return status.ok() ? Error(Code::kDenied, "interrupted") : Error(status);
      }
    }
    if (whole.end.broken) return Error(Code::kGone, Text(url, ": ", whole.end.reason));
    return HttpAnswer{whole.end.status, std::move(whole.body)};
  }

  const HttpOptions options;
  const SystemClock clock;
  CURLM* multi = nullptr;
  std::unique_ptr<curl_slist, SlistFree> headers;
  std::map<Id, std::unique_ptr<Transfer>> transfers;
  Id next_id = 1;
  bool woken = false;  // wake_fd was readable in the last Run
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::Open(HttpOptions options) {
  for (const char c : options.api_key) {
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      return Error(Code::kInvalid, "the API key has a character that no key has (white space, or not ASCII)");
    }
  }
  curl_global_init(CURL_GLOBAL_DEFAULT);
  RaiseDescriptorLimit();
  auto impl = std::make_unique<Impl>(std::move(options));
  impl->multi = curl_multi_init();
  if (!impl->multi) return Error(Code::kIoError, "libcurl cannot be set up");
  std::vector<std::string> lines = {"Content-Type: application/json", "Expect:", "User-Agent: cistern-bench"};
  if (!impl->options.api_key.empty()) lines.push_back("Authorization: Bearer " + impl->options.api_key);
  for (const std::string& line : lines) {
    impl->headers.reset(curl_slist_append(impl->headers.release(), line.c_str()));
  }
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

HttpClient::Id HttpClient::Post(const std::string& url, std::string body, HttpListener& listener) {
  return impl_->Start(url, true, std::move(body), listener);
}

void HttpClient::Cancel(Id id) { impl_->Take(id); }

Status HttpClient::Run(std::int64_t wait_us, int wake_fd) {
  int running = 0;
  impl_->woken = false;
  CURLMcode code = curl_multi_perform(impl_->multi, &running);
  if (code == CURLM_OK && impl_->TellEnds()) return Status();
  if (code == CURLM_OK) {
    curl_waitfd wake{wake_fd, CURL_WAIT_POLLIN, 0};
    const auto wait_ms = static_cast<int>(std::clamp<std::int64_t>((wait_us + 999) / 1000, 0, 60'000));
    code = curl_multi_poll(impl_->multi, &wake, wake_fd >= 0 ? 1 : 0, wait_ms, nullptr);
    impl_->woken = wake_fd >= 0 && wake.revents != 0;
  }
  if (code == CURLM_OK) code = curl_multi_perform(impl_->multi, &running);
  if (code != CURLM_OK) return Status(Code::kIoError, Text("libcurl: ", curl_multi_strerror(code)));
  impl_->TellEnds();
  return Status();
}

Result<HttpAnswer> HttpClient::Get(const std::string& url, std::int64_t timeout_us, int wake_fd) {
  return impl_->Fetch(*this, url, false, timeout_us, wake_fd);
}

Result<HttpAnswer> HttpClient::Post(const std::string& url, std::int64_t timeout_us, int wake_fd) {
  return impl_->Fetch(*this, url, true, timeout_us, wake_fd);
}

Result<std::string> BaseUrl(std::string_view url) {
  std::string base(url);
  const auto wrong = [&](std::string_view why) {
    return Error(Code::kInvalid,
                 Text("--url: ", Shown(url), " ", why, ": expected such as http://127.0.0.1:8000"));
  };
  while (base.ends_with('/')) base.pop_back();
  if (base.ends_with("/v1")) base.resize(base.size() - 3);
  if (!base.starts_with("http://") && !base.starts_with("https://"))
    return wrong("is neither http:// nor https://");
  if (base.find_first_of(" \t\r\n?#") != base.npos) return wrong("has a character that no base URL has");
  CURLU* parts = curl_url();
  const CURLUcode code = curl_url_set(parts, CURLUPART_URL, base.c_str(), 0);
  char* user = nullptr;
  const bool has_user = code == CURLUE_OK && curl_url_get(parts, CURLUPART_USER, &user, 0) == CURLUE_OK;
  curl_free(user);
  curl_url_cleanup(parts);
  if (code != CURLUE_OK) return wrong("is no URL");
  if (has_user) return Error(Code::kInvalid, "--url has a user name in it: keys go into --api-key-file");
  return base;
}

}  // namespace cistern
