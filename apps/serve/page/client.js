// The server's interface, as this page uses it.
function headers(key) {
  const found = {"content-type": "application/json"};
  if (key) found.authorization = "Bearer " + key;
  return found;
}

async function refuse(response) {
  const found = await response.json().catch(() => ({}));
  throw new Error(found.error?.message || "status " + response.status);
}

export async function modelNames(key) {
  const response = await fetch("v1/models", {headers: headers(key)});
  if (!response.ok) await refuse(response);
  return (await response.json()).data.map(model => model.id);
}

export async function* events(path, body, key, signal) {
  const asked = {method: "POST", headers: headers(key), body: JSON.stringify(body), signal};
  const response = await fetch(path, asked);
  if (!response.ok) await refuse(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts)
      if (part.startsWith("data: {")) {
        const event = JSON.parse(part.slice(6));
        if (event.error) throw new Error(event.error.message);
        yield event;
      }
  }
}
