// Loads this page again: after a link from another site the browser sent no cookie, now it does.

const url = new URL(location.href);
url.searchParams.set("again", "1");
location.replace(url);
