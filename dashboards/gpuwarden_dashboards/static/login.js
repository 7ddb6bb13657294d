// Comes here once more: what this very site asks for is asked with the cookie that a link from elsewhere had not.

const url = new URL(location.href);
url.searchParams.set("again", "1");
location.replace(url);
